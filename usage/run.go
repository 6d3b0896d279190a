package usage

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/journal"
	"github.com/tranche-gpu/tranche/claim/layout"
)

// The periods of Run.
const (
	// SampleEvery is how often Run looks at what claims use.
	SampleEvery = 15 * time.Second
	// CollectEvery is how often it accounts what they reserve.
	CollectEvery = time.Minute
)

// Options are those of Run.
type Options struct {
	Ledger *claim.Ledger
	Store  *Store
	// GPUs returns what is known of the node's GPUs by their UUIDs.
	GPUs   func() (map[string]GPU, error)
	Keep   time.Duration // how long rows are kept; 0 is for ever
	Logger hclog.Logger

	sampleEvery, collectEvery time.Duration // of tests
}

// Run accounts usage until the context ends, and once more then. It logs errors and goes on: what it could not collect stays
// in the journal.
func Run(ctx context.Context, o Options) {
	if o.sampleEvery == 0 {
		o.sampleEvery, o.collectEvery = SampleEvery, CollectEvery
	}
	c := collector{Options: o, samples: NewSamples(o.sampleEvery)}
	sample, collect := time.NewTicker(o.sampleEvery), time.NewTicker(o.collectEvery)
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

type collector struct {
	Options
	samples *Samples
	failed  string // what the last collection failed with, so that it is logged once
	pruned  time.Time
}

// sample adds what the claims with living containers use. Of a claim whose use nobody counts there is no sample.
func (c *collector) sample(ctx context.Context) {
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

func (c *collector) collect(ctx context.Context) {
	gpus, err := c.GPUs()
	if err == nil {
		err = c.Store.Collect(ctx, c.Ledger, gpus, c.samples)
	} else { // the time counts all the same; which part of a GPU it is may be known from before
		err = errors.Join(err, c.Store.Collect(ctx, c.Ledger, nil, c.samples))
	}
	if now := time.Now(); err == nil && c.Keep > 0 && now.Sub(c.pruned) > time.Hour {
		err, c.pruned = c.Store.Prune(ctx, now.Add(-c.Keep)), now
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != c.failed && err != nil {
		c.Logger.Error("usage is not accounted at the moment; it will be once this is mended", "error", err)
	} else if text != c.failed {
		c.Logger.Info("usage is accounted again")
	}
	c.failed = text
}

// Layout returns what the device plugin has published of the node's GPUs.
func Layout(runDir string) (map[string]GPU, error) {
	shared, err := layout.Read(runDir)
	gpus := make(map[string]GPU, len(shared))
	for uuid, g := range shared {
		gpus[uuid] = GPU{MemoryBytes: g.MemoryBytes, Replicas: g.Replicas}
	}
	return gpus, err
}
