// Command nomad-device-tranche is Nomad's device plugin for slices of GPUs.
package main

import (
	"os"
	"os/signal"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/cmd/internal/agent"
	"github.com/tranche-gpu/tranche/device"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/internal/version"
)

func main() {
	contextcost.ChildMain()
	mps.ChildMain()
	if version.Print(os.Args, version.Flag, device.PluginName, os.Stdout) {
		return
	}
	if code, asked := device.CheckBlock(os.Args, os.Stdin, os.Stdout); asked {
		os.Exit(code)
	}
	// The pipe that the log goes to ends with the agent. A line in it must not kill the plugin in the midst of something.
	signal.Ignore(unix.SIGPIPE)
	watch := agent.NewWatch()
	go func() {
		watch.Gone(0)
		os.Exit(0)
	}()
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true})
	ndevice.Serve(device.New(logger, version.Version), logger)
}
