package device

import (
	"sync/atomic"
	"testing"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// handClock is a clock that a test moves.
type handClock struct {
	later atomic.Int64
	// set are the timers that were set.
	set chan handTimer
}

// handTimer is a timer that goes off when a test says so.
type handTimer struct {
	wait time.Duration
	fire chan time.Time
}

// moveByHand gives a plugin such a clock.
func moveByHand(p *Plugin) *handClock {
	c := &handClock{set: make(chan handTimer, 100)}
	start, n := time.Now(), p.node.Load()
	n.clock.Now = func() time.Time { return start.Add(time.Duration(c.later.Load())) }
	n.clock.After = func(wait time.Duration) <-chan time.Time {
		timer := handTimer{wait, make(chan time.Time, 1)}
		c.set <- timer
		return timer.fire
	}
	return c
}

// goOff lets the time pass for which a timer was set.
func (c *handClock) goOff(timer handTimer) {
	c.later.Add(int64(timer.wait))
	timer.fire <- time.Time{}
}

// hinting is neverByItself with the packing hint.
var hinting = map[string]any{"fingerprint_period": "1h", "packing_hint": true}

func slicesUsed(t *testing.T, response *ndevice.FingerprintResponse) int64 {
	t.Helper()
	used, ok := response.Devices[0].Attributes["unique.slices_used"].GetInt()
	must.True(t, ok)
	return used
}

// Steps are eighths of the slices, and 0 is for none alone.
func TestSlicesUsed_Steps(t *testing.T) {
	for _, tc := range []struct {
		used, slices int
		want         int64
	}{
		{0, 140, 0}, {1, 140, 18}, {17, 140, 18}, {18, 140, 18}, {19, 140, 35}, {35, 140, 35}, {36, 140, 53}, {122, 140, 123}, {123, 140, 123}, {124, 140, 140}, {140, 140, 140},
		{0, 16, 0}, {2, 16, 2}, {3, 16, 4}, {1, 9, 2}, {9, 9, 9},
		{1, 5, 1}, {4, 5, 4}, {5, 5, 5}, {8, 8, 8}, {0, 0, 0},
	} {
		must.Eq(t, tc.want, inSteps(tc.used, tc.slices), must.Sprintf("%d of %d", tc.used, tc.slices))
	}
}

// How full a GPU is, is not news to Nomad unless the operator wants it: each message makes evaluations of all jobs on the node.
func TestPackingHint_OffByDefault(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"fingerprint_period": "1h"})
	clock := moveByHand(p)
	stream := fingerprint(t, p)
	must.MapNotContainsKey(t, next(t, stream).Devices[0].Attributes, "unique.slices_used")
	clock.later.Store(int64(5 * time.Minute))
	_, err := p.Reserve(sliceIDs(g, 3, 4))
	must.NoError(t, err)
	quiet(t, stream)
	must.SliceEmpty(t, drained(clock.set))
}

// Deferrable changes alone wait until the last message is long enough ago, and then the last state is published.
func TestPublish_RateLimit(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), hinting)
	clock := moveByHand(p)
	stream := fingerprint(t, p)
	must.Eq(t, 0, slicesUsed(t, next(t, stream)))

	clock.later.Store(int64(10 * time.Second))
	_, err := p.Reserve(sliceIDs(g, 3, 4))
	must.NoError(t, err)
	timer := next(t, clock.set) // the fingerprint waits for it, and so has sent nothing
	must.Eq(t, 20*time.Second, timer.wait)
	for number := 10; number < 50; number++ {
		_, err := p.Reserve(sliceIDs(g, number))
		must.NoError(t, err)
	}
	clock.goOff(timer)
	must.Eq(t, 53, slicesUsed(t, next(t, stream)))
	quiet(t, stream)

	// Another slice in the same step is not news, however long ago the last was.
	clock.later.Add(int64(5 * time.Minute))
	_, err = p.Reserve(sliceIDs(g, 60))
	must.NoError(t, err)
	quiet(t, stream)
	must.SliceEmpty(t, drained(clock.set))
	_, err = p.Reserve(sliceIDs(g, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72))
	must.NoError(t, err)
	must.Eq(t, 70, slicesUsed(t, next(t, stream)), must.Sprint("a change after a long time is published at once"))
}

// Deferrable changes are published along with others, and none are left then.
func TestPublish_WithOtherChanges(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), hinting)
	clock := moveByHand(p)
	stream := fingerprint(t, p)
	next(t, stream)
	_, err := p.Reserve(sliceIDs(g, 30))
	must.NoError(t, err)
	must.Eq(t, publishInterval, next(t, clock.set).wait)

	made := ask(t, p.node.Load().ledger.Ledger, g, 20, 1<<30)
	response := next(t, stream)
	must.MapLen(t, 20, unhealthy(response.Devices[0]))
	must.Eq(t, 35, slicesUsed(t, response), must.Sprint("what others than Nomad have counts, too"))
	_, err = p.Reserve(sliceIDs(g, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57))
	must.NoError(t, err)
	must.Eq(t, publishInterval, next(t, clock.set).wait, must.Sprint("the time runs from the last message, whatever it was about"))

	must.NoError(t, p.node.Load().ledger.Cancel(t.Context(), made.ID))
	must.Eq(t, 35, slicesUsed(t, next(t, stream)))
}

// A reverted change is not published.
func TestPublish_Reverted(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), hinting)
	clock := moveByHand(p)
	stream := fingerprint(t, p)
	next(t, stream)
	_, err := p.Reserve(sliceIDs(g, 30))
	must.NoError(t, err)
	first := next(t, clock.set)
	ledger := p.node.Load().ledger
	must.NoError(t, ledger.Drop(t.Context(), claimsOf(t, p)[0].ID))
	quiet(t, stream)
	_, err = p.Reserve(sliceIDs(g, 31))
	must.NoError(t, err)
	timer := next(t, clock.set)
	must.Eq(t, first.wait, timer.wait)
	clock.goOff(timer)
	must.Eq(t, 18, slicesUsed(t, next(t, stream)))
}

// Claims whose slices are of another size count by the memory that they have; those that nobody comes for do not.
func TestSlicesUsed_WhatCounts(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"slice_memory": "4GiB", "fingerprint_period": "1h", "packing_hint": true})
	clock := moveByHand(p)
	ask(t, p.node.Load().ledger.Ledger, g, 9, 1<<30) // three slices of 4GiB, of 35
	_, err := p.Reserve(sliceIDs(g, 10, 11, 12))
	must.NoError(t, err)
	stream := fingerprint(t, p)
	must.Eq(t, 9, slicesUsed(t, next(t, stream)))
	clock.later.Store(int64(claim.StartTimeout + time.Minute))
	p.node.Load().wake()
	must.Eq(t, 5, slicesUsed(t, next(t, stream)))
	must.Eq(t, claim.OwnerExternal, claimsOf(t, p)[0].Owner)
}

// drained are the messages that are in a channel.
func drained[T any](channel <-chan T) []T {
	var all []T
	for {
		select {
		case message := <-channel:
			all = append(all, message)
		default:
			return all
		}
	}
}
