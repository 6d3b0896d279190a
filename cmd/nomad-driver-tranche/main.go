// Command nomad-driver-tranche is the Nomad task driver plugin "containerd". The Nomad agent starts it.
package main

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"

	"tranche.dev/tranche/driver"
)

func main() {
	plugins.ServeCtx(func(ctx context.Context, logger hclog.Logger) any {
		return driver.New(ctx, logger)
	})
}
