package main

import (
	"context"
	"math"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The node's plugins share the simulated GPUs' time in proportion to slices. On real GPUs that is not tested yet.
const (
	sharesDeviceConfig = "compute = \"shares\"\n"
	sharesDriverConfig = "gpu_compute_max_share = 80\n"
)

// sharesTolerance is in points: of a demo, whose machine does other things, too. `make bench` measures how exact shares are.
const sharesTolerance = 10

// sharesHold runs two tasks that want all of the GPU's time, and notes what the simulator's record says that the small one had.
func (d *demonstration) sharesHold(ctx context.Context) error {
	judge, ok := d.judge.(record)
	if !ok {
		return nil
	}
	d.say("running examples/shares.nomad.hcl: two tasks that want all of a GPU's time, at 30 and 70 %%")
	if _, err := d.register(ctx, "shares"); err != nil {
		return err
	}
	groups := map[string]string{}
	allocs, err := d.node.WaitAllocs(ctx, "shares", func(all []*api.AllocationListStub) bool {
		running := 0
		for _, a := range all {
			if a.ClientStatus == api.AllocClientStatusRunning {
				running++
			}
		}
		return running == 2
	})
	if err != nil {
		return err
	}
	for _, a := range allocs {
		if err := d.listen(ctx, &running{id: "shares", alloc: a, said: map[string]line{}}, "computing"); err != nil {
			return err
		}
		if groups[a.TaskGroup], err = d.node.Group(ctx, a.ID, "probe"); err != nil {
			return err
		}
	}
	part, err := judge.share(ctx, groups["small"], groups["large"], 30)
	if err != nil {
		return err
	}
	d.table.add(math.Abs(part-30) <= sharesTolerance, "a task with 30% of the GPU's time has it",
		"%s: %.1f%%, and the other %.1f%%", d.judge.name(), part, 100-part)
	return d.node.StopJob(ctx, "shares")
}

// share returns a container's part, in percent, of the time that it and another one have of the GPU. They have just started: it
// watches for a few seconds, again if the part is not what it should be, and at last says what it is.
func (r record) share(ctx context.Context, one, other string, want float64) (part float64, err error) {
	before, err := r.busy(ctx)
	for tries := 0; err == nil && tries < 15; tries++ {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(3 * time.Second):
		}
		var after map[string]uint64
		if after, err = r.busy(ctx); err != nil {
			break
		}
		mine, its := float64(after[one]-before[one]), float64(after[other]-before[other])
		part, before = 100*mine/max(1, mine+its), after
		if math.Abs(part-want) <= sharesTolerance {
			break
		}
	}
	return part, err
}

// busy returns the GPU time that each container has had.
func (r record) busy(ctx context.Context) (map[string]uint64, error) {
	all, err := r.node.Sim.Record(ctx)
	if err != nil {
		return nil, err
	}
	busy := map[string]uint64{}
	for _, g := range all.Groups {
		busy[g.Group] += g.BusyNS
	}
	return busy, nil
}
