package version

import (
	"fmt"
	"io"
)

// The flags that print a program's version. tranche-runtime has one of its own: its --version prints the next runtime's, from
// which containerd and Docker learn its features.
const (
	Flag        = "--version"
	RuntimeFlag = "--tranche-version"
)

// Print prints a program's name and version if the command line has the flag and nothing else, and reports whether it has.
func Print(args []string, flag, program string, stdout io.Writer) bool {
	if len(args) != 2 || args[1] != flag {
		return false
	}
	fmt.Fprintf(stdout, "%s version %s\n", program, Version)
	return true
}
