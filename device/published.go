package device

import (
	"errors"
	"maps"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/changelog"
)

// publishedState is what the run directory says of the GPUs, for others on this node. It belongs to the fingerprint loop.
type publishedState struct {
	runDir string
	driver *share.Driver
	// bypass is what follows if programs compute outside of their turns.
	bypass layout.Bypass
	clock  *share.Clock
	logger hclog.Logger
	log    changelog.Log

	// layout and health were published last; nil before the first time.
	layout map[string]layout.GPU
	health *health.Report
}

// publishLayout publishes how the GPUs are shared, for those that make claims without Nomad: they may use slices only of
// GPUs that have some.
func (p *publishedState) publishLayout(gpus []share.GPU) {
	shared := make(map[string]layout.GPU)
	for _, g := range gpus {
		said := layout.GPU{
			Mode: g.Mode, SliceBytes: g.SliceBytes, Slices: g.SliceCount, MemoryBytes: g.MemoryBytes, Replicas: g.Replicas,
			Shares: g.Shares,
		}
		if g.Sliced() {
			said.Enforcement = g.Enforced()
		}
		if g.Shares {
			said.Bypass = p.bypass
		}
		if g.Origin != nil {
			said.WholeBytes = g.Origin.GPUMemoryBytes
		}
		shared[g.UUID] = said
	}
	if p.layout != nil && maps.Equal(p.layout, shared) {
		return
	}
	err := layout.Write(p.runDir, shared)
	if p.log.Changed("layout", err) && err != nil {
		p.logger.Error("cannot publish how the GPUs are shared", "run_dir", p.runDir, "error", err)
	}
	if err == nil {
		p.layout = shared
	}
}

// publishHealth publishes which GPUs are unhealthy, and which claims have uncounted memory. The task driver sends events to the
// tasks that have claims on them. For a GPU that was not found yet, what was published before remains: the driver may have
// been unavailable since the plugin started.
func (p *publishedState) publishHealth(gpus []share.GPU, uncounted map[string]health.Condition) {
	before := p.readHealth()
	unhealthy := make(map[string]health.Condition)
	maps.Copy(unhealthy, before.GPUs)
	for _, g := range gpus {
		switch problem := g.Unhealthy(); {
		case problem == "":
			delete(unhealthy, g.UUID)
		case unhealthy[g.UUID].Problem != problem:
			unhealthy[g.UUID] = health.Condition{Problem: problem, Since: p.clock.Now().UTC().Truncate(time.Second)}
		}
	}
	report := health.Report{GPUs: unhealthy, Uncounted: uncounted, Events: p.missedEvents(before.Events)}
	if p.health != nil && maps.Equal(before.GPUs, report.GPUs) && maps.Equal(before.Uncounted, report.Uncounted) &&
		before.Events == report.Events {
		return
	}
	err := health.Write(p.runDir, report)
	if p.log.Changed("health", err) && err != nil {
		p.logger.Error("cannot publish which GPUs are unhealthy and which claims have uncounted memory", "run_dir", p.runDir, "error", err)
	}
	if err == nil {
		p.health = &report
	}
}

// missedEvents returns why Xid errors are missed: what was published before, as long as it is the same.
func (p *publishedState) missedEvents(before *health.Condition) *health.Condition {
	err := p.driver.EventsError()
	switch {
	case err == nil:
		return nil
	case before != nil && before.Problem == err.Error():
		return before
	}
	return &health.Condition{Problem: err.Error(), Since: p.clock.Now().UTC().Truncate(time.Second)}
}

// readHealth returns what was published last, by this plugin process or an earlier one.
func (p *publishedState) readHealth() health.Report {
	if p.health != nil {
		return *p.health
	}
	before, err := health.Read(p.runDir)
	if p.log.Changed("reading health", err) && err != nil {
		// The advice in the error itself is for other programs: the plugin replaces the file.
		p.logger.Warn("cannot read the published health of the GPUs, which is replaced", "run_dir", p.runDir,
			"error", errors.Unwrap(err))
	}
	return before
}
