package device

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// randomNode has allocations come and go as Nomad has them do it. Nomad counts the slices of an allocation as used until it
// has ended, also while its task is restarted in place.
type randomNode struct {
	*simNode
	random *rand.Rand
	allocs []*randomAlloc
}

type randomAlloc struct {
	gpu   int
	ids   []int
	claim *claim.Claim
	// end ends the container; nil where there is none.
	end func()
	// started is whether there ever was one.
	started bool
	// createdNS is when the instance was made, by the simulator's record.
	createdNS uint64
}

// Whatever comes and goes: what Nomad may place gets its instance; nobody who lives loses one; there is none without a claim,
// and none in the end.
func TestDemandSim_Random(t *testing.T) {
	for topology, slice := range map[string]string{"h100x8.conf": "9GiB", "h200x8.conf": "1GiB", "a30x8.conf": "2GiB"} {
		t.Run(topology, func(t *testing.T) {
			onSimulator(t, topology, map[string]any{"slice_memory": slice}, func(t *testing.T, n *simNode) {
				seed := uint64(time.Now().UnixNano())
				t.Logf("seed %d", seed)
				r := &randomNode{simNode: n, random: rand.New(rand.NewPCG(seed, 0))}
				for range 100 {
					r.step()
					r.check()
				}
				for len(r.allocs) > 0 {
					r.finish(r.allocs[0])
				}
				n.unattended()
				for gpu := range n.gpus() {
					must.SliceEmpty(t, n.record(gpu))
				}
				must.SliceEmpty(t, claimsOf(t, n.plugin))
			})
		})
	}
}

func (r *randomNode) step() {
	switch r.random.IntN(10) {
	case 0, 1, 2, 3:
		r.place(r.random.IntN(2))
	case 4, 5:
		if a := r.pick(func(a *randomAlloc) bool { return a.end == nil }); a != nil {
			r.startTask(a)
		}
	case 6: // to be restarted
		if a := r.pick(func(a *randomAlloc) bool { return a.end != nil }); a != nil {
			a.end()
			a.end = nil
		}
	case 7, 8:
		if a := r.pick(func(a *randomAlloc) bool { return a.started }); a != nil {
			r.finish(a)
		}
	case 9:
		if r.random.IntN(3) > 0 {
			r.restart()
			return
		}
		r.longPause()
	}
}

func (r *randomNode) pick(which func(*randomAlloc) bool) *randomAlloc {
	some := slices.DeleteFunc(slices.Clone(r.allocs), func(a *randomAlloc) bool { return !which(a) })
	if len(some) == 0 {
		return nil
	}
	return some[r.random.IntN(len(some))]
}

func (r *randomNode) remove(a *randomAlloc) {
	r.allocs = slices.DeleteFunc(r.allocs, func(other *randomAlloc) bool { return other == a })
}

// place has Nomad give some of the slices that are healthy and free to a task.
func (r *randomNode) place(gpu int) {
	r.t.Helper()
	free := slices.DeleteFunc(healthyOf(r.look()[gpu]), func(number int) bool {
		return slices.ContainsFunc(r.allocs, func(a *randomAlloc) bool { return a.gpu == gpu && slices.Contains(a.ids, number) })
	})
	if len(free) == 0 {
		return
	}
	r.random.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	count := 1 + r.random.IntN(len(free))
	if r.random.IntN(2) == 0 {
		count = 1 + r.random.IntN(min(len(free), 1+len(free)/5))
	}
	a := &randomAlloc{gpu: gpu, ids: free[:count]}
	g := r.gpus()[gpu]
	a.claim = r.reserve(g, a.ids...)
	for _, instance := range r.record(gpu) {
		if instance.Compute[0].UUID == a.claim.GPU.UUID {
			a.createdNS = instance.CreatedNS
			must.GreaterEq(r.t, uint64(count)*r.node().inventory.list()[gpu].SliceBytes, instance.MemoryBytes+reservedAtMost)
		}
	}
	must.Positive(r.t, a.createdNS)
	r.allocs = append(r.allocs, a)
}

// reservedAtMost is more than the driver keeps of an instance's memory.
const reservedAtMost = 1 << 30

// startTask starts the container of a task, or ends the allocation if its instance is gone since the last one ended.
func (r *randomNode) startTask(a *randomAlloc) {
	pid, kill := startInit(r.t)
	container := claim.Container{Runtime: "test", ID: fmt.Sprint("c", pid), InitPID: pid}
	err := r.node().ledger.Bind(r.t.Context(), a.claim.ID, container)
	if a.started && errors.Is(err, claim.ErrUnknownClaim) {
		kill()
		r.remove(a)
		return
	}
	must.NoError(r.t, err)
	ledger := r.node().ledger
	a.started, a.end = true, func() {
		kill()
		must.NoError(r.t, ledger.Release(r.t.Context(), a.claim.ID, container.ID))
	}
}

func (r *randomNode) finish(a *randomAlloc) {
	if a.end != nil {
		a.end()
	}
	r.remove(a)
}

// longPause is longer than the instances of those who have no container wait for one.
func (r *randomNode) longPause() {
	for _, a := range slices.Clone(r.allocs) {
		if a.end == nil {
			r.remove(a)
		}
	}
	r.unattended()
	r.later(0)
	must.Len(r.t, len(r.allocs), claimsOf(r.t, r.plugin))
}

// check compares the simulator's record with the claims.
func (r *randomNode) check() {
	r.t.Helper()
	r.look()
	r.agrees()
	for _, a := range r.allocs {
		if a.end == nil && a.started {
			continue // to be restarted, if its room is not wanted before
		}
		kept := false
		for _, instance := range r.record(a.gpu) {
			kept = kept || instance.Compute[0].UUID == a.claim.GPU.UUID && instance.CreatedNS == a.createdNS
		}
		must.True(r.t, kept, must.Sprintf("the instance of claim %s is another one or gone", a.claim.ID))
	}
}
