package hooks

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// builtHook is the program as it is installed: static, so that it can do what it does for all of its threads.
func builtHook(t *testing.T) string {
	t.Helper()
	build := os.Getenv("TRANCHE_BUILD")
	if build == "" {
		build = "../build"
	}
	hook, err := filepath.Abs(filepath.Join(build, "bin/tranche-hook"))
	must.NoError(t, err)
	_, err = os.Stat(hook)
	must.NoError(t, err, must.Sprint("make build"))
	return hook
}

// waitingHook starts the hook with an open standard input, and waits until it reads from there.
func waitingHook(t *testing.T, attributes *syscall.SysProcAttr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(builtHook(t), "prestart", "--state-dir", t.TempDir(), "--run-dir", t.TempDir(), "--claim", "00000000")
	cmd.Env = []string{}
	cmd.SysProcAttr = attributes
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	// A thread is in read(2) of its standard input then.
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return readsStdin(cmd.Process.Pid) }),
		wait.Timeout(time.Minute), wait.Gap(time.Millisecond)))
	return cmd
}

// readsStdin reports whether a thread of the process is in a read of its standard input, by /proc/PID/task/TID/syscall.
func readsStdin(pid int) bool {
	calls, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	for _, call := range calls {
		text, _ := os.ReadFile(call)
		if strings.HasPrefix(string(text), fmt.Sprintf("%d 0x0 ", unix.SYS_READ)) {
			return true
		}
	}
	return false
}

// statusOf is a field of /proc/PID/task/TID/status, of every thread.
func statusOf(t *testing.T, pid int, field string) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	must.NoError(t, err)
	must.Greater(t, 1, len(files), must.Sprint("a Go program has several threads"))
	var values []string
	for _, file := range files {
		f, err := os.Open(file)
		must.NoError(t, err)
		defer f.Close()
		for lines := bufio.NewScanner(io.Reader(f)); lines.Scan(); {
			if value, ok := strings.CutPrefix(lines.Text(), field+":\t"); ok {
				values = append(values, value)
			}
		}
	}
	must.Len(t, len(files), values)
	return values
}

func TestPrivileges_AreDroppedOnEveryThread(t *testing.T) {
	needs.Root(t, "to have privileges to drop")
	cmd := waitingHook(t, nil)
	var want uint64
	for _, capability := range kept {
		want |= 1 << capability
	}
	for _, field := range []string{"CapEff", "CapPrm", "CapInh"} {
		for _, value := range statusOf(t, cmd.Process.Pid, field) {
			has, err := strconv.ParseUint(value, 16, 64)
			must.NoError(t, err)
			must.Zero(t, has&^want, must.Sprintf("%s is %s", field, value))
			if field == "CapEff" {
				must.Eq(t, want, has, must.Sprint("what it needs is gone"))
			}
		}
	}
	for _, value := range statusOf(t, cmd.Process.Pid, "NoNewPrivs") {
		must.Eq(t, "1", value)
	}
}

// CVE-2019-5736: the program's file cannot be reached through /proc by a process of the same user.
func TestPrivileges_ProcIsClosed(t *testing.T) {
	needs.Root(t, "to become another user")
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	hook := waitingHook(t, nobody)
	read := exec.Command("readlink", fmt.Sprintf("/proc/%d/exe", hook.Process.Pid))
	read.SysProcAttr = nobody
	output, err := read.Output()
	must.Error(t, err, must.Sprintf("it leads to %s", output))
	// The test can tell: a process of that user that did nothing to be closed is open.
	open := exec.Command("sleep", "1000")
	open.SysProcAttr = nobody
	must.NoError(t, open.Start())
	t.Cleanup(func() { end(open) })
	read = exec.Command("readlink", fmt.Sprintf("/proc/%d/exe", open.Process.Pid))
	read.SysProcAttr = nobody
	must.NoError(t, read.Run())
}
