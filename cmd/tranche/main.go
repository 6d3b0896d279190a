// Command tranche is the operator's command line: it runs a program under a limit, and shows the node at a glance.
package main

import (
	"os"

	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/internal/cli"
	"github.com/tranche-gpu/tranche/internal/version"
)

func main() {
	contextcost.ChildMain()
	os.Exit(cli.Main(version.Version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
