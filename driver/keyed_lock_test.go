package driver

import (
	"context"
	"testing"

	"github.com/shoenig/test/must"
)

func TestKeyedLock(t *testing.T) {
	var k keyedLock
	unlock, err := k.lock(t.Context(), "a")
	must.NoError(t, err)
	other, err := k.lock(t.Context(), "b")
	must.NoError(t, err, must.Sprint("another key is another lock"))
	other()

	// Who gives up waiting leaves the lock to others.
	gaveUp, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = k.lock(gaveUp, "a")
	must.ErrorIs(t, err, context.Canceled)
	must.ErrorContains(t, err, "wait for another that works on a")

	got := make(chan func(), 1)
	go func() {
		unlock, err := k.lock(t.Context(), "a")
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
	must.MapEmpty(t, k.locks, must.Sprint("what nobody uses is forgotten"))
}
