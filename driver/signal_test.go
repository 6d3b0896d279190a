package driver

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestParseSignal(t *testing.T) {
	cases := []struct {
		in   string
		want syscall.Signal
	}{
		{"SIGTERM", syscall.SIGTERM}, {"term", syscall.SIGTERM}, {"KILL", syscall.SIGKILL}, {"10", syscall.SIGUSR1}, {"RTMIN+1", 35},
		{"", 0}, {"0", 0}, {"65", 0}, {"-1", 0}, {"SIGNONE", 0},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%q", c.in), func(t *testing.T) {
			got, err := parseSignal(c.in)
			must.Eq(t, c.want, got)
			must.Eq(t, c.want == 0, err != nil)
		})
	}
}

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
