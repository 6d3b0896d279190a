package proc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// sleeper starts a process that sleeps until the test is over.
func sleeper(t *testing.T) ID {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	must.NoError(t, cmd.Start())
	reaped := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(reaped)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-reaped
	})
	p, err := Find(cmd.Process.Pid)
	must.NoError(t, err)
	return p
}

func TestID(t *testing.T) {
	p := sleeper(t)
	must.True(t, p.Lives())

	t.Run("a later one with the same ID is another", func(t *testing.T) {
		other := p
		other.StartTime--
		must.False(t, other.Lives())
		must.NoError(t, other.Signal(unix.SIGKILL))
		must.NoError(t, other.Wait(t.Context()))
		must.True(t, p.Lives())
	})
	t.Run("one of another boot, or of one that is not known, is another", func(t *testing.T) {
		for _, boot := range []string{"", "00000000-0000-4000-8000-000000000000"} {
			other := p
			other.BootID = boot
			must.False(t, other.Lives())
			must.NoError(t, other.Signal(unix.SIGKILL))
			must.NoError(t, other.Wait(t.Context()))
			must.True(t, p.Lives())
		}
	})
	t.Run("one that is not known", func(t *testing.T) {
		must.False(t, ID{}.Lives())
		must.Error(t, ID{}.Signal(unix.SIGKILL))
		must.Error(t, ID{}.Wait(t.Context()))
	})
	t.Run("waiting ends with the context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		must.ErrorIs(t, p.Wait(ctx), context.DeadlineExceeded)
	})
	t.Run("waiting ends with the process", func(t *testing.T) {
		waited := make(chan error)
		go func() { waited <- p.Wait(t.Context()) }()
		must.NoError(t, p.Signal(unix.SIGKILL))
		must.NoError(t, <-waited)
		must.False(t, p.Lives())
		must.NoError(t, p.Signal(unix.SIGKILL))
	})
}

// Its user chooses the name of a process's program: it must not pass for other fields of /proc/PID/stat.
func TestFind_HostileName(t *testing.T) {
	self, err := Self()
	must.NoError(t, err)
	for _, name := range []string{"a b", "a) Z 9 (b", ") S 1 1", "((((", "a\nb", "\xff"} {
		program := filepath.Join(t.TempDir(), name)
		sleep, err := exec.LookPath("sleep")
		must.NoError(t, err)
		must.NoError(t, os.Symlink(sleep, program))
		cmd := exec.Command(program, "600")
		must.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		found, err := Find(cmd.Process.Pid)
		must.NoError(t, err)
		must.True(t, found.Lives())
		must.GreaterEq(t, self.StartTime, found.StartTime)
		must.Less(t, self.StartTime+60*userHZ, found.StartTime)
		parent, err := Parent(cmd.Process.Pid)
		must.NoError(t, err)
		must.Eq(t, os.Getpid(), parent)
	}
}

// A process whose first thread has ended shows as a zombie.
func TestID_Zombies(t *testing.T) {
	cmd := exec.Command("true")
	must.NoError(t, cmd.Start())
	p, err := Find(cmd.Process.Pid)
	must.NoError(t, err)
	var info unix.Siginfo
	must.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
	must.False(t, p.MayLive())
	_, err = p.Open()
	must.ErrorIs(t, err, os.ErrProcessDone)
	must.NoError(t, cmd.Wait())
}

func TestID_HasChildren(t *testing.T) {
	self, err := Self()
	must.NoError(t, err)
	child := sleeper(t)
	must.True(t, self.HasChildren())
	must.False(t, child.HasChildren())
	must.True(t, child.StartedBefore(time.Now().Add(time.Second)))
	must.False(t, child.StartedBefore(time.Now().Add(-time.Hour)))
}
