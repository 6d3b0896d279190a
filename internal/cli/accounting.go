package cli

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// accounting is what the agent does about usage: it collects it all the time, and reports it. Without a database, because the
// disk is full for example, the agent does all else.
type accounting struct {
	place   place
	monitor *monitor.Monitor
	config  bill.Config
	logger  hclog.Logger

	store     atomic.Pointer[usage.Store] // nil until the database is open
	collector atomic.Pointer[usage.Collector]
}

// accounting reads the settings about usage.
func (a *app) accounting(p place, m *monitor.Monitor, logger hclog.Logger) (*accounting, error) {
	config, err := a.usageConfig()
	if err != nil {
		return nil, err
	}
	return &accounting{place: p, monitor: m, config: config, logger: logger}, nil
}

// openAgain is how long run waits before it tries again to open the database.
const openAgain = time.Minute

// run accounts usage until the context ends.
func (a *accounting) run(ctx context.Context) {
	store, err := usage.Open(ctx, usagePlace(a.place, a.config))
	if err != nil {
		a.logger.Error("usage cannot be accounted; what is missing is accounted once this is mended", "error", err)
	}
	for err != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(openAgain):
		}
		store, err = usage.Open(ctx, usagePlace(a.place, a.config))
	}
	c := usage.NewCollector(usage.Options{
		Ledger: a.monitor.Ledger, Store: store, Keep: a.config.Keep, Logger: a.logger,
		GPUs: func(ctx context.Context) map[string]usage.GPU {
			return accountedGPUs(a.monitor.Snapshot(ctx), a.place.runDir)
		},
	})
	a.store.Store(store)
	a.collector.Store(c)
	c.Run(ctx)
}

// accountedGPUs returns what the device plugin says of the GPUs, and NVML of those that it does not manage.
func accountedGPUs(s *monitor.Snapshot, runDir string) map[string]usage.GPU {
	gpus := map[string]usage.GPU{}
	for _, g := range s.GPUs {
		if g.MemoryBytes != nil {
			gpus[g.UUID] = usage.GPU{MemoryBytes: *g.MemoryBytes, WholeBytes: g.WholeBytes}
		}
	}
	managed, _ := usage.Layout(runDir) // the snapshot has the error
	for uuid, g := range managed {
		g.WholeBytes = cmp.Or(g.WholeBytes, gpus[uuid].WholeBytes) // which a device plugin of an earlier version does not say
		gpus[uuid] = g
	}
	return gpus
}

// totals returns what is accounted of the claims; nil if nothing is yet.
func (a *accounting) totals() *usage.Totals {
	if c := a.collector.Load(); c != nil {
		return c.Totals()
	}
	return nil
}

// reportTimeout is how long a page waits for the database.
const reportTimeout = 30 * time.Second

// report is about this node, also where the database has others.
func (a *accounting) report(ctx context.Context, by bill.By, from, to time.Time) (*bill.Report, error) {
	store := a.store.Load()
	if store == nil {
		return nil, errors.New("the usage database could not be opened: the agent's log says why")
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	q := usage.Query{From: from, To: to}
	if a.config.Database != "" {
		q.Node = a.config.Node
	}
	return bill.Make(ctx, store, by, q, a.config.Prices)
}

// close closes the database once run has returned.
func (a *accounting) close() {
	if store := a.store.Load(); store != nil {
		if err := store.Close(); err != nil {
			a.logger.Warn("closing the usage database", "error", err)
		}
	}
}
