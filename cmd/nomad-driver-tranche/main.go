// Command nomad-driver-tranche is the Nomad task driver plugin "containerd". The Nomad agent starts it.
package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/tranche-gpu/tranche/cmd/internal/agent"
	"github.com/tranche-gpu/tranche/driver"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/version"
)

func main() {
	if version.Print(os.Args, version.Flag, "nomad-driver-tranche", os.Stdout) {
		return
	}
	if code, asked := spec.CheckBlock(os.Args, os.Stdin, os.Stdout); asked {
		os.Exit(code)
	}
	// A plugin outlives its agent, and with it the pipe that its log goes to. The next agent reattaches to it: a line
	// in the log must not be what kills it in the meantime.
	signal.Ignore(unix.SIGPIPE)
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true})
	watch := agent.NewWatch()
	go func() {
		watch.Gone(agent.ReattachWithin)
		os.Exit(0)
	}()
	driver.Serve(driver.New(context.Background(), logger), logger, grpc.StatsHandler(watch))
}
