// Command tranche-hook is the OCI hook that binds claims to containers and releases them.
package main

import (
	"os"

	"tranche.dev/tranche/hooks"
)

func main() {
	os.Exit(hooks.Program(os.Args, os.Stdin, os.Stderr))
}
