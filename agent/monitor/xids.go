package monitor

import (
	"maps"
	"sync"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// xidCounter counts Xid errors by GPU and number. Those without a GPU count for each: it may be any.
type xidCounter struct {
	mu     sync.Mutex
	counts map[string]map[uint64]uint64
}

// count counts events until the channel is closed.
func (x *xidCounter) count(events <-chan nvml.Event) {
	for event := range events {
		x.add(event)
	}
}

func (x *xidCounter) add(event nvml.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts == nil {
		x.counts = make(map[string]map[uint64]uint64)
	}
	if x.counts[event.UUID] == nil {
		x.counts[event.UUID] = make(map[uint64]uint64)
	}
	x.counts[event.UUID][event.Xid]++
}

// of returns the counts of a GPU.
func (x *xidCounter) of(uuid string) map[uint64]uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	counts := maps.Clone(x.counts[uuid])
	if counts == nil {
		return maps.Clone(x.counts[""])
	}
	for xid, count := range x.counts[""] {
		counts[xid] += count
	}
	return counts
}
