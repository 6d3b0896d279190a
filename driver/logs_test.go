package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/task"
)

// withPipes gives the task pipes that nobody reads.
func withPipes(t *testing.T, cfg *drivers.TaskConfig) *drivers.TaskConfig {
	t.Helper()
	dir := t.TempDir()
	cfg.StdoutPath, cfg.StderrPath = filepath.Join(dir, ".task.stdout.fifo"), filepath.Join(dir, ".task.stderr.fifo")
	must.NoError(t, unix.Mkfifo(cfg.StdoutPath, 0o600))
	must.NoError(t, unix.Mkfifo(cfg.StderrPath, 0o600))
	return cfg
}

// read has a process of its own copy the pipes to files beside them, as Nomad's log process does, until kill is called.
func read(t *testing.T, cfg *drivers.TaskConfig) (kill func()) {
	t.Helper()
	script := fmt.Sprintf("cat <%[1]s >>%[1]s.log & exec cat <%[2]s >>%[2]s.log", cfg.StdoutPath, cfg.StderrPath)
	reader := exec.Command("sh", "-c", script)
	reader.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	must.NoError(t, reader.Start())
	kill = func() {
		_ = unix.Kill(-reader.Process.Pid, unix.SIGKILL)
		_ = reader.Wait()
	}
	t.Cleanup(kill)
	return kill
}

// A shim waits for the reader of a pipe; StartTask says that there is none.
func TestStart_NobodyReadsTheLogs(t *testing.T) {
	d := newTestDriver(t)
	cfg := withPipes(t, d.failing())
	_, _, err := d.driver.StartTask(cfg)
	must.ErrorContains(t, err, task.ErrLogsUnread.Error())
	must.True(t, recoverable.Is(err))
	d.noTraces(cfg)
}

// Nomad's log process may die under a task: the kernel is short of memory, or it crashes. The task goes on, also after a restart
// of the plugin, and what it writes goes to the next process that reads it.
func TestLogs_ReaderDies(t *testing.T) {
	d := newTestDriver(t)
	cfg := withPipes(t, d.newTask(`
		fill() {
			until [ -e /local/$1 ]; do sleep 0.05; done
			head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2
			touch /local/$1-done
		}
		fill first; fill second
		i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done`, false))
	local := func(name string) string { return filepath.Join(cfg.TaskDir().LocalDir, name) }
	fills := func(d *testDriver, name string) {
		t.Helper()
		touch(t, local(name))
		eventually(t, "the task to go on", func() bool { _, err := os.Stat(local(name + "-done")); return err == nil })
		eventually(t, "an event", func() bool {
			return slices.ContainsFunc(d.events.all(), func(event string) bool {
				return strings.Contains(event, task.ErrLogsUnread.Error())
			})
		})
	}
	kill := read(t, cfg)
	handle := d.start(cfg)
	kill()
	fills(d, "first")
	d.driver.Shutdown()
	d = newTestDriverWith(t, d.node, d.node.config())
	must.NoError(t, d.RecoverTask(handle))
	t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
	fills(d, "second")
	read(t, cfg)
	eventually(t, "logs that are read again", func() bool {
		data, _ := os.ReadFile(cfg.StdoutPath + ".log")
		return inARow(string(data)) > 50
	})
}

// A task that could replace a pipe of its logs by a link would read with Nomad's log process, and write with the shim, any file of
// the host.
func TestLogs_TaskCannotReplaceItsPipes(t *testing.T) {
	d := newTestDriver(t)
	result, out := d.run(d.newTask(`
		cd /alloc && touch data/mine && ls -A logs | grep -c fifo
		! touch logs/mine && ! rm logs/.task.stdout.fifo && ! mv logs other && ! mv logs/.task.stderr.fifo data && echo refused`, true),
		"2\nrefused\n")
	must.True(t, result.Successful(), must.Sprint(out))
}

// Not all that can write to the pipes' directory is a task of this driver's.
func TestStart_LinkInPlaceOfALogPipe(t *testing.T) {
	d := newTestDriver(t)
	victim := filepath.Join(t.TempDir(), "shadow")
	must.NoError(t, os.WriteFile(victim, []byte("root\n"), 0o600))
	for name, attack := range map[string]func(t *testing.T, cfg *drivers.TaskConfig){
		"files": func(t *testing.T, cfg *drivers.TaskConfig) {
			for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
				must.NoError(t, os.Remove(path))
				must.NoError(t, os.Symlink(victim, path))
			}
		},
		"directory": func(t *testing.T, cfg *drivers.TaskConfig) {
			logs := filepath.Dir(cfg.StdoutPath)
			must.NoError(t, os.Rename(logs, logs+".moved"))
			must.NoError(t, os.Symlink(logs+".moved", logs))
		},
		"hard link": func(t *testing.T, cfg *drivers.TaskConfig) {
			must.NoError(t, os.Remove(cfg.StderrPath))
			must.NoError(t, os.Link(victim, cfg.StderrPath))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			cfg := withPipes(t, d.newTask("echo overwritten; echo overwritten >&2", false))
			attack(t, cfg)
			_, _, err := d.driver.StartTask(cfg)
			must.ErrorContains(t, err, "open the pipes of the task's logs")
			must.False(t, recoverable.Is(err), must.Sprint("so that Nomad places the task anew, in another directory"))
			content, err := os.ReadFile(victim)
			must.NoError(t, err)
			must.Eq(t, "root\n", string(content))
			d.nothingLeft(cfg)
		})
	}
}

// inARow returns how many lines at the end of a log have consecutive numbers.
func inARow(log string) (count int) {
	last := 0
	for line := range strings.Lines(log) {
		number, _ := strconv.Atoi(strings.Trim(line, "\x00\n"))
		if number != last+1 {
			count = 0
		}
		count, last = count+1, number
	}
	return count
}
