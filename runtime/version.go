package runtime

import (
	"fmt"
	"io"
)

// VersionFlag has tranche-runtime tell its own version. --version is the next runtime's, since containerd and Docker read
// from it what that can do.
const VersionFlag = "--tranche-version"

// PrintVersion prints the version if the command line asks for nothing else.
func PrintVersion(args []string, version string, stdout io.Writer) bool {
	if len(args) != 2 || args[1] != VersionFlag {
		return false
	}
	fmt.Fprintf(stdout, "tranche-runtime version %s\n", version)
	return true
}
