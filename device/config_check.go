package device

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mig"
	"github.com/tranche-gpu/tranche/internal/changelog"
	"github.com/tranche-gpu/tranche/internal/size"
)

// configCheck compares the configuration with the GPUs of the node.
type configCheck struct {
	settings *settings
	driver   *share.Driver
	modes    map[claim.Mode]share.Mode
	layout   *mig.Layout
	logger   hclog.Logger
	log      changelog.Log
}

// run queries the driver and returns an error if the configuration does not fit the GPUs. If some GPUs do not answer, that
// is logged, and is no error of the configuration.
func (c *configCheck) run() error {
	if mode := c.settings.sharing.others.Mode; len(c.settings.sharing.blocks) == 0 && mode != claim.ModeMIG &&
		mode != claim.ModeMPS && c.settings.contextBytes == 0 {
		return nil // any GPU can be shared so
	}
	ctx, cancel := c.driver.Limit(context.Background())
	defer cancel()
	found, err := c.driver.Read(ctx)
	if err != nil {
		c.logger.Warn("cannot check whether the gpu blocks fit the GPUs", "error", err)
		return nil
	}
	if len(found.Failed) > 0 {
		c.logger.Warn("cannot check whether the gpu blocks fit the GPUs: some do not answer", "failed", len(found.Failed))
		return nil
	}
	return errors.Join(append(c.settings.sharing.idle(found.GPUs), c.impossible(ctx, found.GPUs)...)...)
}

// logIdle logs the blocks that have no effect on this node.
func (c *configCheck) logIdle(found *nvml.Node) {
	if len(found.Failed) > 0 {
		return
	}
	err := errors.Join(c.settings.sharing.idle(found.GPUs)...)
	if c.log.Changed("gpu blocks", err) && err != nil {
		c.logger.Error("gpu blocks do not fit the GPUs of this node", "error", err)
	}
}

// impossible returns an error for each GPU that is offered and cannot be shared as it is configured.
func (c *configCheck) impossible(ctx context.Context, gpus []nvml.GPU) []error {
	var wrong []error
	for _, g := range gpus {
		if c.settings.ignored[g.UUID] {
			continue
		}
		policy := c.settings.sharing.of(g)
		err := c.modes[policy.Mode].Check(ctx, c.layout.WithoutOwnMIG(g), policy)
		if err == nil {
			err = c.settings.checkContext(g, policy)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: the GPU %d, %s (%s), cannot be in mode %q: %w", c.settings.sharing.where(g),
				g.Index, g.Name, g.UUID, policy.Mode, err))
		}
	}
	return wrong
}

// checkContext returns an error if a GPU with slices has no room for a context, as far as its memory is configured.
func (s *settings) checkContext(g nvml.GPU, p share.Policy) error {
	if !p.Sliced() || s.contextBytes < g.UsableBytes() {
		return nil
	}
	return fmt.Errorf("context_memory is %s, but the GPU has only %s for processes: set it to less, or to %q",
		size.Format(s.contextBytes), size.Format(g.UsableBytes()), autoContextMemory)
}
