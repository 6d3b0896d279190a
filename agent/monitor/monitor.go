// Package monitor gathers the state and the use of a node's GPUs and claims, for all commands, pages and metrics: from
// the ledger, the regions, the files in the run directory and NVML. It only reads: it changes no claim, and no limit is enforced by
// what it finds.
package monitor

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/usage"
)

const (
	// fresh is how old a snapshot may be that several readers share.
	fresh = time.Second
	// timeout is how long a snapshot takes at most.
	timeout = 5 * time.Second
	// nvmlTimeout is how long a snapshot waits for NVML, to list the GPUs and again to measure. A GPU that does not answer has no
	// measurements.
	nvmlTimeout = 2 * time.Second
	// samplePeriod is how often Run takes a snapshot, so that pauses between readers leave no gap in what is observed.
	samplePeriod = 10 * time.Second
)

// Options say where a monitor reads.
type Options struct {
	Ledger *claim.Ledger
	// NVML is nil where only the claims matter; the GPUs are then those that the claims name.
	NVML   nvml.Interface
	RunDir string
	// Runs returns claims of `tranche run`, which are in no ledger; nil if they do not matter.
	Runs func() []*Claim
	// SliceBytes is the size of a slice on GPUs for which neither the device plugin nor a claim says it.
	SliceBytes uint64
	Logger     hclog.Logger
	// Usage returns what is accounted of claims; nil if nothing is.
	Usage func() *usage.Totals
	// Observe gets each snapshot, one after the other; nil if nobody wants them. It must not modify them.
	Observe func(*Snapshot)
	// PolicyActions returns what the idle policy did; nil if there is none.
	PolicyActions func() map[PolicyAction]uint64
}

// Monitor takes snapshots of a node. Its methods may be called concurrently.
type Monitor struct {
	Options
	now func() time.Time

	mu   sync.Mutex // held while a snapshot is taken
	last *Snapshot
	log  changeLog
	busy busyness
	xids xidCounter
	idle idleness
}

// New returns a monitor.
func New(o Options) *Monitor {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return &Monitor{Options: o, now: time.Now}
}

// Run observes the node until the context ends: it counts Xid errors, and takes a snapshot now and then.
func (m *Monitor) Run(ctx context.Context) {
	var counting sync.WaitGroup
	defer counting.Wait()
	counting.Go(func() { m.xids.count(m.NVML.Events(ctx)) })
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	for {
		m.Snapshot(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Snapshot returns the state of the node, which may be up to a second old. Callers share it and must not modify it.
func (m *Monitor) Snapshot(ctx context.Context) *Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil && m.now().Sub(m.last.Time) < fresh {
		return m.last
	}
	// Others will share it: it must not lack what this caller did not wait for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	m.last = m.take(ctx)
	if m.Observe != nil {
		m.Observe(m.last)
	}
	return m.last
}

// Read returns the state of the node now, without what is measured or observed for a while. What cannot be read is missing in it,
// and Errors says why.
func (m *Monitor) Read(ctx context.Context, nvmlTimeout time.Duration) *Snapshot {
	s := &Snapshot{Time: m.now(), Errors: make(map[Source]string)}
	m.addClaims(ctx, s)
	bounded, cancel := context.WithTimeout(ctx, nvmlTimeout)
	defer cancel()
	m.addGPUs(bounded, s)
	m.addHealth(s)
	m.addTurns(s)
	m.addIdleTooLong(s)
	for i := range s.GPUs {
		s.GPUs[i].countSlices(s.On(s.GPUs[i].UUID))
	}
	return s
}

// take gathers a snapshot, and logs what cannot be read.
func (m *Monitor) take(ctx context.Context) *Snapshot {
	s := m.Read(ctx, nvmlTimeout)
	bounded, cancel := context.WithTimeout(ctx, nvmlTimeout)
	defer cancel()
	m.addMeasurements(bounded, s)
	m.idle.observe(s)
	if m.Usage != nil {
		s.Usage = m.Usage()
	}
	if m.PolicyActions != nil {
		s.PolicyActions = m.PolicyActions()
	}
	for i := range s.GPUs {
		s.GPUs[i].countFree()
		s.GPUs[i].Xids = m.xids.of(s.GPUs[i].UUID)
	}
	for source, cause := range s.Errors {
		if m.log.changed(source, cause) {
			m.Logger.Warn("cannot read a source of the state of this node", "source", source, "error", cause)
		}
	}
	m.log.forget(s.Errors)
	return s
}

// changeLog knows what was logged last about each source, so that what lasts is logged once.
type changeLog map[Source]string

func (l *changeLog) changed(source Source, cause string) bool {
	if *l == nil {
		*l = make(changeLog)
	}
	before := (*l)[source]
	(*l)[source] = cause
	return before != cause
}

// forget removes sources that can be read again.
func (l changeLog) forget(errors map[Source]string) {
	for source := range l {
		if _, still := errors[source]; !still {
			delete(l, source)
		}
	}
}
