// Command tranche-hook is the OCI hook that binds claims to containers and releases them. Under the name of a link of the
// task driver's it becomes an OCI runtime that must not have the host's /dev/null.
//
// It does one thing after another, and for milliseconds: it need not look up how many processors its cgroup allows.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"fmt"
	"os"

	"github.com/tranche-gpu/tranche/driver/ownnull"
	"github.com/tranche-gpu/tranche/hooks"
)

func main() {
	if runtime, ok := ownnull.Runtime(os.Args[0]); ok {
		fmt.Fprintf(os.Stderr, "tranche-hook: %v\n", ownnull.Become(runtime, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(hooks.Program(os.Args, os.Stdin, os.Stderr))
}
