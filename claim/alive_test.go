package claim

import (
	"testing"

	"github.com/prometheus/procfs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/proc"
)

func TestAlive(t *testing.T) {
	self, err := proc.Self()
	must.NoError(t, err)
	me := Container{InitPID: self.PID, InitStartTime: self.StartTime, BootID: self.BootID}
	must.True(t, Alive(me))

	reused, earlier, nobody := me, me, me
	reused.InitStartTime--
	earlier.BootID = "another-boot"
	nobody.InitPID = 0
	must.False(t, Alive(reused))
	must.False(t, Alive(earlier))
	must.False(t, Alive(nobody))
}

// stateOf is the state letter in /proc/PID/stat.
func stateOf(t *testing.T, pid int) string {
	t.Helper()
	process, err := procfs.NewProc(pid)
	must.NoError(t, err)
	stat, err := process.Stat()
	must.NoError(t, err)
	return stat.State
}
