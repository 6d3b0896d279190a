package task

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/size"
)

func TestExitResult(t *testing.T) {
	cases := []struct {
		name   string
		notice exitNotice
		event  bool
		want   drivers.ExitResult
		err    string
	}{
		{"success", exitNotice{code: 0}, false, drivers.ExitResult{}, ""},
		{"failure", exitNotice{code: 3}, false, drivers.ExitResult{ExitCode: 3}, ""},
		{"a signal", exitNotice{code: 143}, false, drivers.ExitResult{ExitCode: 143, Signal: 15}, ""},
		{"a code above the signals", exitNotice{code: 200}, false, drivers.ExitResult{ExitCode: 200}, ""},
		{"out of memory by the count", exitNotice{code: 137, oomKills: 1}, false,
			drivers.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true}, "limit of 64 MiB"},
		{"out of memory by the event", exitNotice{code: 137}, true,
			drivers.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true}, "limit of 64 MiB"},
		{"success in spite of it", exitNotice{code: 0, oomKills: 1}, true, drivers.ExitResult{}, ""},
		{"a signal, after it lost a child", exitNotice{code: 143, oomKills: 1}, true, drivers.ExitResult{ExitCode: 143, Signal: 15}, ""},
		{"a failure soon after it lost a child", exitNotice{code: 3, at: time.Now().Add(time.Second), oomKills: 1}, true,
			drivers.ExitResult{ExitCode: 3, OOMKilled: true}, "limit of 64 MiB"},
		{"a failure long after", exitNotice{code: 3, at: time.Now().Add(time.Hour), oomKills: 1}, true,
			drivers.ExitResult{ExitCode: 3}, ""},
		{"lost", exitNotice{code: 255, lost: true}, false, drivers.ExitResult{ExitCode: 255}, "how the task ended is not known"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := New(nil, &drivers.TaskConfig{Resources: &drivers.Resources{
				LinuxResources: &drivers.LinuxResources{MemoryLimitBytes: 64 * size.MiB}}}, State{})
			if c.event {
				h.markOOM()
			}
			got := h.exitResult(c.notice)
			if c.err == "" {
				must.NoError(t, got.Err)
			} else {
				must.ErrorContains(t, got.Err, c.err)
			}
			got.Err = nil
			must.Eq(t, c.want, *got)
		})
	}
}

// A task that is being stopped can still run out of memory.
func TestExitResult_OutOfMemoryWhileStopping(t *testing.T) {
	h := New(nil, &drivers.TaskConfig{Resources: &drivers.Resources{LinuxResources: &drivers.LinuxResources{}}}, State{})
	h.markOOM()
	h.noteStop()
	must.False(t, h.exitResult(exitNotice{code: 137, oomKills: 1}).OOMKilled)
	h.markOOM()
	h.noteStop() // Nomad stops it once more
	must.True(t, h.exitResult(exitNotice{code: 137, oomKills: 2}).OOMKilled)
}

func TestHandle_Status(t *testing.T) {
	h := New(nil, &drivers.TaskConfig{ID: "id", Name: "web"}, State{ContainerID: "c", PID: 7})
	must.Eq(t, drivers.TaskStateRunning, h.Status().State)
	must.Nil(t, h.Exit())
	ended := time.Unix(1000, 0)
	h.finish(&drivers.ExitResult{ExitCode: 2}, ended)
	status := h.Status()
	must.Eq(t, drivers.TaskStateExited, status.State)
	must.Eq(t, ended, status.CompletedAt)
	must.Eq(t, 2, status.ExitResult.ExitCode)
	must.Eq(t, "c", status.DriverAttributes["container_id"])
}

// Nomad takes what comes from the channel for a result, even if that is nothing because it was closed.
func TestHandle_WaitAlwaysHasAResult(t *testing.T) {
	h := New(nil, &drivers.TaskConfig{ID: "id"}, State{})
	ctx, cancel := context.WithCancel(t.Context())
	abandoned := h.Wait(ctx)
	cancel()
	result := <-abandoned
	must.NotNil(t, result)
	must.ErrorIs(t, result.Err, context.Canceled)

	waiting := h.Wait(t.Context())
	h.finish(&drivers.ExitResult{ExitCode: 2}, time.Now())
	result = <-waiting
	must.NotNil(t, result)
	must.Eq(t, 2, result.ExitCode)
}
