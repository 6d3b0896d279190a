package cli

import (
	"context"
	"maps"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// accounting is what the agent does about usage: it collects it all the time, and reports it.
type accounting struct {
	store     *usage.Store
	collector *usage.Collector
	prices    bill.Prices
	logger    hclog.Logger
}

// accounting opens the usage database of a node.
func (a *app) accounting(ctx context.Context, p place, m *monitor.Monitor, logger hclog.Logger) (*accounting, error) {
	config, err := a.usageConfig()
	if err != nil {
		return nil, err
	}
	store, err := usage.Open(ctx, p.stateDir)
	if err != nil {
		return nil, err
	}
	return &accounting{
		store: store, prices: config.Prices, logger: logger,
		collector: usage.NewCollector(usage.Options{
			Ledger: m.Ledger, Store: store, Keep: config.Keep, Logger: logger,
			GPUs: func(ctx context.Context) map[string]usage.GPU { return accountedGPUs(m.Snapshot(ctx), p.runDir) },
		}),
	}, nil
}

// accountedGPUs returns what the device plugin says of the GPUs, and NVML of those that it does not manage.
func accountedGPUs(s *monitor.Snapshot, runDir string) map[string]usage.GPU {
	gpus := map[string]usage.GPU{}
	for _, g := range s.GPUs {
		if g.MemoryBytes != nil {
			gpus[g.UUID] = usage.GPU{MemoryBytes: *g.MemoryBytes}
		}
	}
	if managed, err := usage.Layout(runDir); err == nil {
		maps.Copy(gpus, managed)
	}
	return gpus
}

func (a *accounting) report(ctx context.Context, by bill.By, from, to time.Time) (*bill.Report, error) {
	return bill.Make(ctx, a.store, by, from, to, a.prices)
}

func (a *accounting) close() {
	if err := a.store.Close(); err != nil {
		a.logger.Warn("closing the usage database", "error", err)
	}
}
