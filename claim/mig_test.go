package claim

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/region"
)

func toCome(start, size int, names ...string) Request {
	return onInstance(testGPU, "", start, size, names...)
}

var madeInstance = GPU{UUID: migUUID, Name: "NVIDIA H200 MIG 2g.35gb", ContextBytes: 200 << 20}

func TestMIG_MadeAfterItIsReserved(t *testing.T) {
	l := newLedger(t)
	c, token, err := l.Reserve(t.Context(), toCome(2, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	must.True(t, c.Making())
	must.Eq(t, testGPU.UUID, c.PhysicalGPU())
	u, err := l.Usage(t.Context(), c.ID)
	must.NoError(t, err)
	must.Eq(t, 0, u.UsedBytes)

	// Nobody can have it yet, and nobody else its place.
	must.ErrorContains(t, l.Bind(t.Context(), c.ID, container("c1", startProcess(t))), "is not created yet")
	must.ErrorContains(t, prepare(l, c.ID, "c1", 0), "is not created yet")
	var held *HeldError
	_, _, err = l.Reserve(t.Context(), toCome(3, 1, slicesOf(8, 8)...))
	must.True(t, asError(err, &held), must.Sprintf("%v", err))
	must.ErrorContains(t, err, "a process that makes its MIG instance still uses")
	must.True(t, asError(l.Drop(t.Context(), c.ID), &held))

	must.NoError(t, l.CompleteMIG(t.Context(), c.ID, madeInstance, 5, 1))
	made, err := l.Lookup(t.Context(), token)
	must.NoError(t, err)
	must.False(t, made.Making())
	must.Eq(t, madeInstance, made.GPU)
	must.True(t, time.Since(made.MIG.Created) < time.Minute)
	made.MIG.Created = time.Time{}
	must.Eq(t, &MIG{
		GPUUUID: testGPU.UUID, Profile: "1g.18gb", GPUInstance: 5, ComputeInstance: 1, Start: 2, Size: 2,
	}, made.MIG)
	h, err := region.ReadHeader(l.regionPath(c.ID))
	must.NoError(t, err)
	must.Eq(t, region.Header{ClaimID: c.ID, GPUUUID: migUUID, LimitBytes: 4 << 30, ContextBytes: 200 << 20}, h)
	must.NoError(t, prepare(l, c.ID, "c1", 0))
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", startProcess(t))))

	must.ErrorContains(t, l.CompleteMIG(t.Context(), c.ID, madeInstance, 5, 1), "waits for no MIG instance")
}

func TestMIG_Cancelled(t *testing.T) {
	l := newLedger(t)
	c, token, err := l.Reserve(t.Context(), toCome(2, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	must.NoError(t, l.Cancel(t.Context(), c.ID))
	must.SliceEmpty(t, list(t, l))
	_, err = l.Lookup(t.Context(), token)
	must.ErrorIs(t, err, ErrUnknownToken)
	must.ErrorIs(t, l.CompleteMIG(t.Context(), c.ID, madeInstance, 5, 1), ErrUnknownClaim)

	made, _, err := l.Reserve(t.Context(), toCome(2, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	must.NoError(t, l.CompleteMIG(t.Context(), made.ID, madeInstance, 5, 1))
	must.NoError(t, l.Cancel(t.Context(), made.ID))
	must.Eq(t, []string{made.ID}, ids(list(t, l)), must.Sprint("what is complete is Nomad's"))
}

// Whoever was to make the instance has died: its place is free for others after a while.
func TestMIG_NeverMade(t *testing.T) {
	l := newLedger(t)
	c, _, err := l.Reserve(t.Context(), toCome(2, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	later(l, MakeWithin+time.Second)
	must.Eq(t, []string{c.ID}, ids(list(t, l)), must.Sprint("the plugin looks for it, to see what became of the instance"))
	newer, _, err := l.Reserve(t.Context(), toCome(3, 1, slicesOf(8, 8)...))
	must.NoError(t, err)
	must.Eq(t, []string{newer.ID}, ids(list(t, l)))
	must.ErrorIs(t, l.CompleteMIG(t.Context(), c.ID, madeInstance, 5, 1), ErrUnknownClaim)
}

// The driver gives an instance the UUID of one that is gone: a claim on that one, which waits for a restart in place, does
// not lead to the new one.
func TestMIG_UUIDOfAnEarlierInstance(t *testing.T) {
	l := newLedger(t)
	_, token, err := l.Reserve(t.Context(), onInstance(testGPU, migUUID, 0, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	c, _, err := l.Reserve(t.Context(), toCome(4, 4, slicesOf(4, 7)...))
	must.NoError(t, err)
	must.NoError(t, l.CompleteMIG(t.Context(), c.ID, madeInstance, 5, 1))
	must.Eq(t, []string{c.ID}, ids(list(t, l)))
	_, err = l.Lookup(t.Context(), token)
	must.ErrorIs(t, err, ErrUnknownToken)

	// If a container lives there, something is wrong, and nobody gets it twice.
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", startProcess(t))))
	other, _, err := l.Reserve(t.Context(), toCome(0, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	var held *HeldError
	must.True(t, asError(l.CompleteMIG(t.Context(), other.ID, madeInstance, 5, 1), &held))
	must.NoError(t, l.Cancel(t.Context(), other.ID))
	must.Eq(t, []string{c.ID}, ids(list(t, l)))
}

func TestMIG_CompleteRefuses(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 0)
	must.ErrorContains(t, l.CompleteMIG(t.Context(), c.ID, madeInstance, 1, 0), "waits for no MIG instance (mode slice")
	must.ErrorContains(t, l.CompleteMIG(t.Context(), c.ID, GPU{}, 1, 0), "has no UUID")
}

func TestMIG_IncompleteWithAContainerIsBroken(t *testing.T) {
	l := newLedger(t)
	c, _, err := l.Reserve(t.Context(), toCome(2, 2, slicesOf(0, 3)...))
	must.NoError(t, err)
	spoil(t, l, c.ID, func(r *record) { r.Container = &Container{ID: "c1"} })
	_, problems, err := l.List(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, problems)
	must.StrContains(t, problems[0].Reason, "is not created yet")
	must.Eq(t, testGPU.UUID, problems[0].GPUUUID)
}
