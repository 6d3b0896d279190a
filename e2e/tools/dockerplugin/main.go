// Command dockerplugin is Nomad's own docker driver as a plugin process, so that it can be measured beside ours under
// the same conditions: an agent runs it in its own process, and ours in one of its own.
//
// It lies in this module because the driver's licence (BUSL-1.1) is not the product's.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins"
)

func main() {
	plugins.ServeCtx(func(ctx context.Context, logger hclog.Logger) any {
		return docker.NewDockerDriver(ctx, logger)
	})
}
