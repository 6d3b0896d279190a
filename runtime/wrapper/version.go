package wrapper

import (
	"fmt"
	"io"
)

// VersionFlag prints the version of tranche-runtime. --version prints the next runtime's, from which containerd and Docker
// learn its features.
const VersionFlag = "--tranche-version"

// PrintVersion prints the version if the command line asks for nothing else.
func PrintVersion(args []string, version string, stdout io.Writer) bool {
	if len(args) != 2 || args[1] != VersionFlag {
		return false
	}
	fmt.Fprintf(stdout, "tranche-runtime version %s\n", version)
	return true
}
