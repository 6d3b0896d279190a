package share

import (
	"context"
	"time"

	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// ContextCosts returns how much memory a CUDA context takes on a GPU.
type ContextCosts interface {
	Cost(ctx context.Context, gpu contextcost.GPU) (uint64, error)
	// Known is like Cost, but does not create a context to find out.
	Known(gpu contextcost.GPU) (uint64, bool)
}

// Driver is NVML with a time limit for one query. Queries may take seconds per GPU on an idle node.
type Driver struct {
	nvml.Interface
	// Partitioner is the same driver, where it supports MIG; nil otherwise.
	Partitioner nvml.Partitioner
	Timeout     time.Duration
}

// Limit returns a context that ends after the time limit of one query.
func (d *Driver) Limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.Timeout)
}

// Clock is the time, which tests replace.
type Clock struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}
