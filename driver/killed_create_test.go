package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// slowRuntime returns a runc that blocks for some seconds after it has created its first container, with the container's
// process and the hooks behind it, and the file that it makes then.
func slowRuntime(t *testing.T) (program, created string) {
	t.Helper()
	dir := t.TempDir()
	program, created = filepath.Join(dir, "slow-runc"), filepath.Join(dir, "created")
	must.NoError(t, os.WriteFile(program, []byte(`#!/bin/sh
runc "$@"
status=$?
case " $* " in
*" create "*) [ -e `+created+` ] || { touch `+created+`; sleep 3; } ;;
esac
exit $status
`), 0o755))
	return program, created
}

// A plugin process is killed while containerd creates the task. containerd then ends the creation, which takes it 5 seconds
// here, and leaves a shim.
func TestKilledInStartTask_WhileContainerdCreates(t *testing.T) {
	n, config, claims := killedNode(t)
	for name, gpu := range map[string]bool{"a claim": true, "no claim": false} {
		t.Run(name, func(t *testing.T) {
			config := config
			var created string
			config.Runtime, created = slowRuntime(t)
			d := newTestDriverWith(t, n, config)
			cfg := d.stubborn(func(c *spec.TaskConfig) { c.NetworkMode = network.None })
			if gpu {
				claims.reserve(t, cfg)
			}
			cmd := d.newPluginRun(&pluginRun{Config: config, Task: cfg, Lingers: true})
			must.NoError(t, cmd.Start())
			eventually(t, "the container", func() bool { _, err := os.Stat(created); return err == nil })
			must.NoError(t, cmd.Process.Kill())
			must.Error(t, cmd.Wait())

			next := newTestDriverWith(t, n, config)
			next.start(cfg)
			next.runsOnce(cfg)
			if gpu {
				must.Eq(t, naming.ContainerID(cfg), claims.holder(t))
			}
			must.NoError(t, next.StopTask(cfg.ID, 50*time.Millisecond, "SIGTERM"))
			must.NoError(t, next.DestroyTask(cfg.ID, false))
			next.noTraces(cfg)
			if gpu {
				claims.free(t)
			}
		})
	}
}
