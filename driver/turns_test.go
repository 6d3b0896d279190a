package driver

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/shoenig/test/must"
)

// taken waits for a turn that is free.
func taken(t *testing.T, turns *turns) (end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end, err := turns.take(ctx)
	must.NoError(t, err)
	return end
}

// noneFree asserts that whoever asks has to wait.
func noneFree(t *testing.T, turns *turns) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := turns.take(ctx)
	must.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTurns_NoMoreThanThereAre(t *testing.T) {
	turns := newTurns(2, time.Minute)
	end := taken(t, turns)
	taken(t, turns)
	noneFree(t, turns)
	end()
	taken(t, turns)
	noneFree(t, turns)
}

func TestTurns_EndingTwiceGivesOneBack(t *testing.T) {
	turns := newTurns(1, time.Minute)
	end := taken(t, turns)
	end()
	end()
	taken(t, turns)
	noneFree(t, turns)
}

func TestTurns_OneThatHangsDoesNotHoldUpTheOthers(t *testing.T) {
	turns := newTurns(1, 10*time.Millisecond)
	late := taken(t, turns)
	end := taken(t, turns) // Once the first has been at it for too long.
	turns.limit = time.Minute
	end()
	taken(t, turns)
	late() // It has been given back before.
	noneFree(t, turns)
}

func TestStartTask_WaitsForItsTurn(t *testing.T) {
	d := newTestDriver(t)
	d.driver.turns = newTurns(1, time.Minute)
	end := taken(t, d.driver.turns)
	cfg := d.task("exit 0")
	started := make(chan error, 1)
	go func() {
		_, _, err := d.StartTask(cfg)
		started <- err
	}()
	eventually(t, "the start's lease", func() bool {
		leases, err := d.client.LeasesService().List(d.ctx, fmt.Sprintf("labels.%q==%q", labelTaskID, cfg.ID))
		return err == nil && len(leases) == 1
	})
	select {
	case err := <-started:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	_, err := d.client.LoadContainer(d.ctx, containerID(cfg))
	must.ErrorIs(t, err, errdefs.ErrNotFound)

	end()
	must.NoError(t, <-started)
	must.Zero(t, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
	// It has given its turn back.
	taken(t, d.driver.turns)
}
