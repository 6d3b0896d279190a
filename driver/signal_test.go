package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestSignalTask(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("trap 'echo got it' USR1; echo up; while :; do sleep 0.05; done")
	d.start(cfg)
	d.stdout(cfg, "up")
	must.NoError(t, d.SignalTask(cfg.ID, "SIGUSR1"))
	d.stdout(cfg, "got it")
	must.ErrorContains(t, d.SignalTask(cfg.ID, "SIGNONE"), `unknown signal "SIGNONE"`)
	must.ErrorContains(t, d.SignalTask("unknown", "SIGUSR1"), drivers.ErrTaskNotFound.Error())
	must.NoError(t, d.SignalTask(cfg.ID, "SIGKILL"))
	result := d.wait(cfg)
	must.Eq(t, 9, result.Signal)
	must.Eq(t, 137, result.ExitCode)
	must.False(t, result.OOMKilled)
	must.ErrorContains(t, d.SignalTask(cfg.ID, "SIGUSR1"), "has ended")
}
