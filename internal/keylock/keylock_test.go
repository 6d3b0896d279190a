package keylock

import (
	"context"
	"testing"

	"github.com/shoenig/test/must"
)

func TestLocks(t *testing.T) {
	var k Locks
	unlock, err := k.Lock(t.Context(), "a")
	must.NoError(t, err)
	other, err := k.Lock(t.Context(), "b")
	must.NoError(t, err, must.Sprint("another key is another lock"))
	other()

	// A waiter that gives up leaves the lock to others.
	gaveUp, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = k.Lock(gaveUp, "a")
	must.ErrorIs(t, err, context.Canceled)
	must.ErrorContains(t, err, "wait for the lock of a")

	got := make(chan func(), 1)
	go func() {
		unlock, err := k.Lock(t.Context(), "a")
		if err == nil {
			got <- unlock
		}
	}()
	select {
	case <-got:
		t.Fatal("two have the lock at once")
	default:
	}
	unlock()
	(<-got)()
	must.MapEmpty(t, k.locks, must.Sprint("unused keys are removed"))
}
