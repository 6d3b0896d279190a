// Package proctest has what tests of processes share.
package proctest

import (
	"os/exec"
	"sync"
	"syscall"
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

// Named starts a process with a command line of the test's choice. It runs until stop, or the end of the test, with the attributes
// of attr if there are any.
func Named(t *testing.T, attr *syscall.SysProcAttr, commandLine ...string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", "echo runs; read line"}, commandLine[1:]...)...)
	cmd.Args[0], cmd.SysProcAttr = commandLine[0], attr
	_, err := cmd.StdinPipe()
	must.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	_, err = stdout.Read(make([]byte, 1)) // Start returns before the kernel has set the command line
	must.NoError(t, err)
	stop = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(stop)
	return stop
}

// Exit ends the process at once, for test binaries that stand in for another program: os.Exit takes a second under the race
// detector (GORACE's atexit_sleep_ms).
func Exit(status int) {
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(status), 0, 0)
}
