// Command tranche-runtime is an OCI runtime that gives containers their fraction of a GPU and then becomes the next
// one, runc or crun.
//
// It does one thing after another, and for milliseconds: it need not look up how many processors its cgroup allows.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"github.com/tranche-gpu/tranche/internal/version"
	"github.com/tranche-gpu/tranche/runtime/wrapper"
)

func main() {
	if version.Print(os.Args, version.RuntimeFlag, "tranche-runtime", os.Stdout) {
		return
	}
	os.Exit(wrapper.Main(os.Args, os.Environ(), os.Stderr))
}
