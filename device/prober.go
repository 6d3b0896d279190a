package device

import (
	"context"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// prober finds out on which GPUs the driver can hold tasks to their limits, once for each driver that is loaded.
type prober struct {
	sharing *sharing
	driver  *share.Driver
	logger  hclog.Logger

	// mu is held while GPUs are tried: reservations scan, too.
	mu sync.Mutex
	// version is that of the driver that was tried, and found is why it cannot, by the GPUs' UUIDs; empty where it can.
	version string
	found   map[string]string
	log     changelog.Log
}

// forget has all GPUs tried again: the driver may be another.
func (p *prober) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found = nil
}

// probe returns why the driver cannot limit memory on each of the GPUs for which that matters; empty where it can.
func (p *prober) probe(ctx context.Context, node *nvml.Node) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.version != node.DriverVersion {
		p.version, p.found = node.DriverVersion, nil
	}
	before := p.found
	p.found = make(map[string]string)
	for _, g := range node.GPUs {
		policy := p.sharing.of(g)
		if !policy.MayBeByDriver() {
			continue
		}
		reason, known := before[g.UUID]
		if !known {
			reason = p.try(ctx, g)
		}
		p.found[g.UUID] = reason
	}
	return p.found
}

func (p *prober) try(ctx context.Context, g nvml.GPU) string {
	if g.MIG.Enabled {
		return enforcement.NoInstances
	}
	err := enforcement.Probe(ctx, p.driver, g.UUID)
	changed := p.log.Changed(g.UUID, err)
	switch {
	case err != nil && changed:
		p.logger.Info("the shadow library enforces the limits of memory", "gpu", g.UUID, "reason", err)
	case changed:
		p.logger.Info("the GPU driver enforces the limits of memory", "gpu", g.UUID)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
