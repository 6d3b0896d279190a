package claim

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/region"
)

const hostMemory = 4 << 30

// checkHostMemory checks what the record, the region and the report of usage say.
func checkHostMemory(t *testing.T, l *Ledger, id string, want uint64) {
	t.Helper()
	for _, c := range list(t, l) {
		if c.ID == id {
			must.Eq(t, want, c.GPUHostMemoryBytes)
		}
	}
	h, err := region.ReadHeader(l.regionPath(id))
	must.NoError(t, err)
	must.Eq(t, want, h.SpillBytes)
	u, err := l.Usage(context.Background(), id)
	must.NoError(t, err)
	if want == 0 {
		must.Nil(t, u.Spill)
	} else {
		must.Eq(t, &region.Spill{LimitBytes: want}, u.Spill)
	}
}

func TestPrepareRegion(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	checkHostMemory(t, l, c.ID, 0)
	must.NoError(t, prepare(l, c.ID, "c1", 0))
	mapped, err := os.Open(filepath.Join(l.regionPath(c.ID), region.LimitFile)) // as a process of the claim has it
	must.NoError(t, err)
	defer mapped.Close()

	for _, bytes := range []uint64{hostMemory, hostMemory, 1 << 20, 0, hostMemory} {
		must.NoError(t, prepare(l, c.ID, "c1", bytes))
		checkHostMemory(t, l, c.ID, bytes)
	}
	before, err := mapped.Stat()
	must.NoError(t, err)
	after, err := os.Stat(filepath.Join(l.regionPath(c.ID), region.LimitFile))
	must.NoError(t, err)
	must.True(t, os.SameFile(before, after), must.Sprint("the region was not written in place"))
	h, err := region.ReadHeader(l.regionPath(c.ID))
	must.NoError(t, err)
	must.Eq(t, c.LimitBytes, h.LimitBytes)

	must.ErrorIs(t, prepare(l, "0badcafe", "c1", 1), ErrUnknownClaim)
}

// The region is made again: after a reboot, or since it broke.
func TestGPUHostMemoryOutlivesTheRegion(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, prepare(l, c.ID, "c1", hostMemory))
	must.NoError(t, os.RemoveAll(l.regions))
	u, err := l.Usage(ctx, c.ID)
	must.NoError(t, err)
	must.Eq(t, &region.Spill{LimitBytes: hostMemory}, u.Spill)
	must.NoError(t, prepare(l, c.ID, "c1", hostMemory))
	checkHostMemory(t, l, c.ID, hostMemory)

	must.NoError(t, region.SetSpill(l.regionPath(c.ID), 1<<20))
	must.NoError(t, prepare(l, c.ID, "c1", hostMemory))
	checkHostMemory(t, l, c.ID, hostMemory)
}

// Bind starts a container, which then has what was set for it; the next one has it no more, however the first ended.
func TestGPUHostMemoryEndsWithTheContainer(t *testing.T) {
	ctx := context.Background()
	for name, end := range map[string]func(t *testing.T, l *Ledger, id string){
		"released": func(t *testing.T, l *Ledger, id string) { must.NoError(t, l.Release(ctx, id, "c1")) },
		"swept": func(t *testing.T, l *Ledger, _ string) {
			_, err := l.Sweep(ctx)
			must.NoError(t, err)
		},
		"found dead": func(*testing.T, *Ledger, string) {},
		"released while something of it still uses the region": func(t *testing.T, l *Ledger, id string) {
			holdSlot(t, l.regionPath(id), 0)
			must.NoError(t, l.Release(ctx, id, "c1"))
			h, err := region.ReadHeader(l.regionPath(id))
			must.NoError(t, err)
			must.Zero(t, h.SpillBytes)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			c, _ := reserve(t, l, 0, 1)
			must.NoError(t, prepare(l, c.ID, "c1", hostMemory))
			init := startProcess(t)
			must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))
			checkHostMemory(t, l, c.ID, hostMemory)
			endProcess(init)
			end(t, l, c.ID)
			must.NoError(t, prepare(l, c.ID, "c2", 0))
			checkHostMemory(t, l, c.ID, 0)
		})
	}
	t.Run("superseded", func(t *testing.T) {
		l := newLedger(t)
		c, _ := reserve(t, l, 0, 1)
		must.NoError(t, prepare(l, c.ID, "c1", hostMemory))
		newer, _ := reserve(t, l, 0, 1)
		checkHostMemory(t, l, newer.ID, 0)
	})
}

// The container before died unseen, and what is set is for the next, which binds the claim later.
func TestPrepareRegionForARestart(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	first := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", first)))
	endProcess(first)
	must.NoError(t, prepare(l, c.ID, "c2", hostMemory))
	must.NoError(t, l.Release(ctx, c.ID, "c1")) // late
	must.NoError(t, l.Bind(ctx, c.ID, container("c2", startProcess(t))))
	checkHostMemory(t, l, c.ID, hostMemory)
}

// What was uncounted in one container is not taken from the limit of the next.
func TestUncountedEndsWithTheContainer(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, prepare(l, c.ID, "c1", 0))
	must.NoError(t, l.SetUncounted(c, 1<<20))
	header, err := region.ReadHeader(l.regionPath(c.ID))
	must.NoError(t, err)
	must.Eq(t, 1<<20, header.UncountedBytes)
	must.NoError(t, prepare(l, c.ID, "c2", 0))
	header, err = region.ReadHeader(l.regionPath(c.ID))
	must.NoError(t, err)
	must.Eq(t, 0, header.UncountedBytes)
}

func TestPrepareRegionLeavesALivingContainer(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, prepare(l, c.ID, "c1", hostMemory))
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", startProcess(t))))
	for _, bytes := range []uint64{0, 2 * hostMemory} {
		_, err := l.PrepareRegion(ctx, c.ID, "c2", bytes)
		var bound *BoundError
		must.True(t, asError(err, &bound), must.Sprint(err))
		must.ErrorContains(t, err, "container c2")
		checkHostMemory(t, l, c.ID, hostMemory)
	}
}
