// Package proctest has what tests of processes share.
package proctest

import (
	"os/exec"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

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

// Exit ends the process at once, for test binaries that stand in for another program: os.Exit takes a second under the race
// detector (GORACE's atexit_sleep_ms).
func Exit(status int) {
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(status), 0, 0)
}
