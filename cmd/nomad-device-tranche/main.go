// Command nomad-device-tranche is Nomad's device plugin for slices of GPUs.
package main

import (
	"os/signal"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"golang.org/x/sys/unix"

	"tranche.dev/tranche/device"
	"tranche.dev/tranche/device/contextcost"
	"tranche.dev/tranche/device/mps"
)

// version is a semantic version, as Nomad demands of plugins.
var version = "v0.1.0-dev"

func main() {
	contextcost.ChildMain()
	mps.ChildMain()
	// A plugin outlives its agent, and with it the pipe that its log goes to. The next agent reattaches to it: a line
	// in the log must not be what kills it in the meantime.
	signal.Ignore(unix.SIGPIPE)
	plugins.Serve(func(logger hclog.Logger) any { return device.New(logger, version) })
}
