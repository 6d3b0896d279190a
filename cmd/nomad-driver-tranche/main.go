// Command nomad-driver-tranche is the Nomad task driver plugin "containerd". The Nomad agent starts it.
package main

import (
	"context"
	"os/signal"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"tranche.dev/tranche/driver"
)

func main() {
	// A plugin outlives its agent, and with it the pipe that its log goes to. The next agent reattaches to it: a line
	// in the log must not be what kills it in the meantime.
	signal.Ignore(unix.SIGPIPE)
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true})
	driver.Serve(driver.New(context.Background(), logger), logger)
}
