package driver

import (
	"fmt"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/shoenig/test/must"
	"golang.org/x/sync/semaphore"

	"github.com/tranche-gpu/tranche/driver/naming"
)

func TestAcquireFor_ReleasesOnce(t *testing.T) {
	s := semaphore.NewWeighted(1)
	release, err := acquireFor(t.Context(), s, time.Minute)
	must.NoError(t, err)
	must.False(t, s.TryAcquire(1))
	release()
	release()
	must.True(t, s.TryAcquire(1))
	must.False(t, s.TryAcquire(1))
}

func TestAcquireFor_ReleasesAfterTheLimit(t *testing.T) {
	s := semaphore.NewWeighted(1)
	release, err := acquireFor(t.Context(), s, 10*time.Millisecond)
	must.NoError(t, err)
	must.NoError(t, s.Acquire(t.Context(), 1)) // blocks until the limit is over
	release()
	must.False(t, s.TryAcquire(1))
}

func TestStartTask_LimitsCreations(t *testing.T) {
	d := newTestDriver(t)
	d.driver.creations = semaphore.NewWeighted(1)
	must.True(t, d.driver.creations.TryAcquire(1))
	cfg := d.task("exit 0")
	started := make(chan error, 1)
	go func() {
		_, _, err := d.StartTask(cfg)
		started <- err
	}()
	eventually(t, "the start's lease", func() bool {
		leases, err := d.client.LeasesService().List(d.ctx, fmt.Sprintf("labels.%q==%q", naming.TaskID, cfg.ID))
		return err == nil && len(leases) == 1
	})
	select {
	case err := <-started:
		t.Fatalf("the start did not wait for the semaphore: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	_, err := d.client.LoadContainer(d.ctx, naming.ContainerID(cfg))
	must.ErrorIs(t, err, errdefs.ErrNotFound)

	d.driver.creations.Release(1)
	must.NoError(t, <-started)
	must.Zero(t, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
	must.True(t, d.driver.creations.TryAcquire(1))
}
