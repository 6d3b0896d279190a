package driver

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestTask_ExitCodeAndLogs(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("echo out; echo err >&2; exit 7")
	result, _ := d.run(cfg, "out\n")
	must.Eq(t, 7, result.ExitCode)
	must.Zero(t, result.Signal)
	must.False(t, result.OOMKilled)
	d.log(cfg, "stderr", "err\n")
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
}

func TestTask_Stop(t *testing.T) {
	cases := []struct {
		name     string
		script   string
		signal   string
		timeout  time.Duration
		exitCode int
		signaled int
		atLeast  time.Duration
	}{
		{"by the default signal", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done", "", 20 * time.Second, 3, 0, 0},
		{"by a signal of the job", "trap 'exit 4' USR1; echo up; while :; do sleep 0.05; done", "SIGUSR1", 20 * time.Second, 4, 0, 0},
		{"by force when it will not", "trap '' TERM; echo up; while :; do sleep 0.05; done", "SIGTERM", time.Second, 137, 9, time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := newTestDriver(t)
			cfg := d.task(c.script)
			d.start(cfg)
			d.stdout(cfg, "up")
			began := time.Now()
			must.NoError(t, d.StopTask(cfg.ID, c.timeout, c.signal))
			must.Greater(t, c.atLeast, time.Since(began))
			result := d.wait(cfg)
			must.Eq(t, c.exitCode, result.ExitCode)
			must.Eq(t, c.signaled, result.Signal)
			must.NoError(t, d.DestroyTask(cfg.ID, false))
			d.nothingLeft(cfg)
		})
	}
}
