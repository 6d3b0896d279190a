// Command tranche-hook is the OCI hook that binds claims to containers and releases them.
//
// It does one thing after another, and for milliseconds: it need not look up how many processors its cgroup allows.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"github.com/tranche-gpu/tranche/hooks"
	"github.com/tranche-gpu/tranche/internal/version"
)

func main() {
	if version.Print(os.Args, version.Flag, "tranche-hook", os.Stdout) {
		return
	}
	os.Exit(hooks.Program(os.Args, os.Stdin, os.Stderr))
}
