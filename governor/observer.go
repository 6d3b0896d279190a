package governor

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/governor/status"
)

// observes is how often the processes on the GPUs are listed. One that has not joined is named when it is seen twice: a program
// joins when it begins to use the driver.
const observes = 1500 * time.Millisecond

// observer finds the processes of governed claims that use a GPU and have not joined.
type observer struct {
	options Options
	// changed is called when other processes are named than before.
	changed func()

	mu sync.Mutex
	// claims and joined are those of the last status.
	claims []*claim.Claim
	joined map[user]bool
	// found are the processes that have not joined, by claim.
	found map[string][]status.Process

	// failed is the last error, which is logged once.
	failed string
}

// user is a process on a GPU.
type user struct {
	gpuUUID string
	pid     int
}

// know tells the observer which claims there are, and which processes have joined.
func (o *observer) know(claims []*claim.Claim, joined map[user]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claims, o.joined = claims, joined
}

// name adds the processes that have not joined to a status.
func (o *observer) name(s *status.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, found := range o.found {
		if c, ok := s.Claims[id]; ok {
			c.NotJoined = found
			s.Claims[id] = c
		}
	}
}

func (o *observer) run(ctx context.Context) {
	if o.options.Processes == nil {
		return
	}
	ticker := time.NewTicker(observes)
	defer ticker.Stop()
	before := make(map[user]bool)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			before = o.observe(ctx, before)
		}
	}
}

// observe names the processes that have not joined now nor before, and returns those that have not now.
func (o *observer) observe(ctx context.Context, before map[user]bool) map[user]bool {
	o.mu.Lock()
	claims, joined := o.claims, o.joined
	o.mu.Unlock()
	byGPU := make(map[string][]*claim.Claim)
	for _, c := range claims {
		if c.Container != nil && claim.Alive(*c.Container) {
			byGPU[c.GPU.UUID] = append(byGPU[c.GPU.UUID], c)
		}
	}
	outside := make(map[user]bool)
	found := make(map[string][]status.Process)
	for uuid, of := range byGPU {
		pids, err := o.options.Processes(ctx, uuid)
		if err != nil {
			if err.Error() != o.failed {
				o.options.Logger.Warn("cannot list the processes of a GPU: who computes outside of its turns is not named", "gpu", uuid, "error", err)
			}
			o.failed = err.Error()
			continue
		}
		containers := processes.Of(of)
		for _, pid := range pids {
			by := user{uuid, pid}
			if joined[by] {
				continue
			}
			owners := containers.Claims(pid)
			if len(owners) == 0 {
				continue
			}
			outside[by] = true
			if before[by] {
				found[owners[0].ID] = append(found[owners[0].ID], status.Process{PID: pid, Name: nameOf(pid)})
			}
		}
	}
	o.mu.Lock()
	o.log(found)
	changed := !maps.EqualFunc(o.found, found, slices.Equal)
	o.found = found
	o.mu.Unlock()
	if changed {
		o.changed()
	}
	return outside
}

// log names each process once.
func (o *observer) log(found map[string][]status.Process) {
	for id, all := range found {
		for _, p := range all {
			if !slices.Contains(o.found[id], p) {
				o.options.Logger.Warn("a process of a governed claim uses the GPU outside of its turns: it has to load libcuda.so.1 by "+
					"that name", "claim", id, "pid", p.PID, "name", p.Name)
			}
		}
	}
}
