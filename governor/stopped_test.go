package governor

import (
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/governor/turns"
)

// Bounded looks find all stopped processes of a claim after some beats, and that they go on.
func TestMany_StoppedAreFound(t *testing.T) {
	pid := sleeper(t)
	stop(t, pid)
	c := newCrowd(t, append(repeat(pid, 200), sleeper(t))...)
	c.drains()
	known := func() (count int) {
		for _, p := range c.peers {
			if p.stopped {
				count++
			}
		}
		return count
	}
	last := c.many.conns[200] // runs, and keeps the turn alone once it is looked at
	for range 20 {
		c.checkStopped(c.now)
		c.now += beat
		if last.peer.looked > 0 {
			c.gpu("GPU-1").Drained(c.now, c.many.ID, last.process, c.gpuTurn(), turns.Drain{})
		}
	}
	must.Eq(t, 200, known())
	must.NoError(t, unix.Kill(pid, unix.SIGCONT))
	awaitTrue(t, "the process to go on", func() bool { return !isStopped(pid, frozenCgroups{}) })
	c.runs(c.now, c.many.conns[7].peer) // as a message says
	must.Eq(t, 199, known())
	for range 20 {
		c.checkStopped(c.now)
		c.now += beat
	}
	must.Eq(t, 0, known())
}

func (c *crowd) gpuTurn() uint64 {
	s, _ := c.gpu("GPU-1").Status(c.now, c.many.ID)
	return s.Turn
}
