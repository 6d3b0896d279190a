package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/governor/keeper"
)

// systemd's governor takes the place of one that the device plugin has started; one that a shell starts does not, even if systemd has
// started the shell.
func TestGovernor_OfSystemd(t *testing.T) {
	dir := t.TempDir()
	o := keeper.Options{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), DriverRoot: dir}
	kept := keptGovernor(t, o)
	start := func(script string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", script, "sh", filepath.Join(os.Getenv("TRANCHE_BUILD"), "bin/tranche"), "governor", "--run-dir", o.RunDir, "--state-dir", o.StateDir, "--driver-root", dir)
		must.NoError(t, cmd.Start())
		return cmd
	}
	must.Error(t, start(`export SYSTEMD_EXEC_PID=$$; "$@"`).Wait())
	must.True(t, kept.Lives())

	cmd := start(`export SYSTEMD_EXEC_PID=$$; exec "$@"`)
	var g *keeper.Governor
	for deadline := time.Now().Add(time.Minute); g == nil || g.PID != cmd.Process.Pid; time.Sleep(10 * time.Millisecond) {
		must.True(t, time.Now().Before(deadline))
		var err error
		g, err = keeper.Find(o.RunDir, "tranche")
		must.NoError(t, err)
	}
	must.False(t, g.Kept)
	must.False(t, kept.MayLive())
	must.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	must.NoError(t, cmd.Wait())
}
