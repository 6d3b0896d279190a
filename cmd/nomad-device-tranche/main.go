// nomad-device-tranche is Nomad's device plugin for slices of GPUs.
package main

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"tranche.dev/tranche/device"
	"tranche.dev/tranche/device/contextcost"
)

// version is a semantic version, as Nomad demands of plugins.
var version = "v0.1.0-dev"

func main() {
	contextcost.ChildMain()
	plugins.Serve(func(logger hclog.Logger) any { return device.New(logger, version) })
}
