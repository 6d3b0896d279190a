// Command dockerplugin is Nomad's own docker driver as a plugin process, so that it can be measured beside ours under
// the same conditions: an agent runs it in its own process, and ours in one of its own.
//
// It is a module of its own because the driver's licence (BUSL-1.1) is not the product's.
package main

import (
	"context"

	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins"
)

func main() { plugins.ServeCtx(factory(docker.NewDockerDriver)) }

// factory has the compiler find out the logger's type, whose module this one need not require.
func factory[Logger, Driver any](newDriver func(context.Context, Logger) Driver) func(context.Context, Logger) any {
	return func(ctx context.Context, logger Logger) any { return newDriver(ctx, logger) }
}
