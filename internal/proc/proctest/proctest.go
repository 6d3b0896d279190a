// Package proctest has what tests of processes share.
package proctest

import (
	"os/exec"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// Sleeper starts a process that sleeps until the test ends.
func Sleeper(t *testing.T) proc.ID {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "600") // t.Context ends before the cleanup
	must.NoError(t, cmd.Start())
	reaped := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(reaped)
	}()
	t.Cleanup(func() { <-reaped })
	p, err := proc.Find(cmd.Process.Pid)
	must.NoError(t, err)
	return p
}
