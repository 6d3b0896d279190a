package usage

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/journal"
	"github.com/tranche-gpu/tranche/claim/layout"
)

// The periods of a Collector.
const (
	// SampleEvery is how often it looks at what claims use.
	SampleEvery = 15 * time.Second
	// CollectEvery is how often it accounts what they reserve.
	CollectEvery = time.Minute
)

// Options are those of a Collector.
type Options struct {
	Ledger *claim.Ledger
	Store  *Store
	// GPUs returns what is known of the node's GPUs by their UUIDs.
	GPUs   func(context.Context) map[string]GPU
	Keep   time.Duration // how long rows are kept; 0 is forever
	Logger hclog.Logger

	sampleEvery, collectEvery time.Duration // of tests
}

// Collector accounts usage all the time.
type Collector struct {
	Options
	samples *Samples
	failed  string // what the last collection failed with, so that it is logged once
	began   time.Time
	pruned  time.Time
	totals  atomic.Pointer[Totals]
}

// Totals are what the claims in the ledger have had reserved up to a time, by their IDs.
type Totals struct {
	Seen   time.Time
	Claims map[string]Total
	// UnusedGiBHours is the memory that a claim reserved and did not use times the hours, in the last day, as far as it was observed.
	// Claims that were not observed are missing.
	UnusedGiBHours map[string]float64
}

// NewCollector returns a collector.
func NewCollector(o Options) *Collector {
	if o.sampleEvery == 0 {
		o.sampleEvery, o.collectEvery = SampleEvery, CollectEvery
	}
	now := time.Now()
	return &Collector{Options: o, samples: NewSamples(o.sampleEvery), began: now, pruned: now}
}

// Totals returns the totals of the last collection; nil before the first.
func (c *Collector) Totals() *Totals { return c.totals.Load() }

// Run accounts usage until the context ends, and once more then. It logs errors and continues: what it could not collect stays
// in the journal.
func (c *Collector) Run(ctx context.Context) {
	sample, collect := time.NewTicker(c.sampleEvery), time.NewTicker(c.collectEvery)
	defer sample.Stop()
	defer collect.Stop()
	c.sample(ctx)
	c.collect(ctx)
	for {
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCollection)
			defer cancel()
			c.collect(ctx)
			return
		case <-sample.C:
			c.sample(ctx)
		case <-collect.C:
			c.collect(ctx)
		}
	}
}

// lastCollection bounds the collection at the end of Run. systemd kills a service that takes longer than 90 seconds.
const lastCollection = 20 * time.Second

// sample adds what the claims with living containers use. Of a claim whose use nobody counts there is no sample.
func (c *Collector) sample(ctx context.Context) {
	claims, _, err := c.Ledger.Recent(ctx)
	if err != nil {
		return // collect reports it
	}
	for _, held := range claims {
		if held.Container == nil || held.Reservation(held.Container.BootID) != journal.Reserved {
			continue
		}
		if use, err := c.Ledger.UsageOf(held); err == nil {
			c.samples.Add(held, time.Now(), use.UsedBytes, use.PeakBytes)
		}
	}
}

// collectionTimeout is how long a collection may wait for a database that does not answer.
const collectionTimeout = 5 * time.Minute

func (c *Collector) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, collectionTimeout)
	defer cancel()
	gaps, err := c.Store.Collect(ctx, c.Ledger, c.GPUs(ctx), c.samples)
	if err != nil {
		c.samples.forget(0, time.Now().UnixMilli()) // those that have waited for too long
	}
	for _, g := range gaps {
		c.Logger.Warn("some usage is unknown", "from", g.From, "to", g.To, "reason", g.Reason)
	}
	if err == nil {
		var totals *Totals
		if totals, err = c.Store.Totals(ctx); err == nil {
			c.totals.Store(totals)
		}
	}
	if now := time.Now(); err == nil && c.Keep > 0 && now.Sub(c.pruned) > pruneEvery {
		err, c.pruned = c.Store.Prune(ctx, keptSince(now, c.began, now.Sub(c.began), c.Keep)), now
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != c.failed && err != nil {
		c.Logger.Error("usage cannot be accounted; what is missing is accounted once this is mended", "error", err)
	} else if text != c.failed {
		c.Logger.Info("usage is accounted again")
	}
	c.failed = text
}

// pruneEvery is how often old rows are removed, the first time so long after the start.
const pruneEvery = time.Hour

// keptSince returns the time before which rows are removed, in a process that began some time ago. If the machine's clock was set
// forward meanwhile, that does not make rows old.
func keptSince(now, began time.Time, ago, keep time.Duration) time.Time {
	if passed := began.Round(0).Add(ago); passed.Before(now.Round(0)) {
		now = passed
	}
	return now.Add(-keep)
}

// Layout returns what the device plugin has published of the node's GPUs.
func Layout(runDir string) (map[string]GPU, error) {
	shared, err := layout.Read(runDir)
	gpus := make(map[string]GPU, len(shared))
	for uuid, g := range shared {
		gpus[uuid] = GPU{MemoryBytes: g.MemoryBytes, Replicas: g.Replicas, WholeBytes: g.WholeBytes}
	}
	return gpus, err
}
