// Command tranche-runtime is an OCI runtime that gives containers their fraction of a GPU and then becomes the next
// one, runc or crun.
package main

import (
	"os"

	"tranche.dev/tranche/runtime"
)

func main() {
	os.Exit(runtime.Main(os.Args, os.Environ(), os.Stderr))
}
