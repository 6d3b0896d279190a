package claim

import (
	"os"
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseStat(t *testing.T) {
	const tail = " S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 987654 1000 1"
	for name, text := range map[string]string{
		"plain":       "42 (sleep)" + tail,
		"parentheses": "42 (a) Z 9 (b)" + tail,
		"spaces":      "42 (tmux: server (x) )" + tail,
	} {
		p, err := parseStat(text)
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, process{state: 'S', threads: 3, startTime: 987654}, p, must.Sprint(name))
	}
	for _, text := range []string{"", "42 (x", "42 (x) S 1 2 3", "42 (x) S 1 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 x 0 1 1 1"} {
		_, err := parseStat(text)
		must.ErrorContains(t, err, "cannot read the process status")
	}
}

func TestAlive(t *testing.T) {
	boot, err := bootID()
	must.NoError(t, err)
	self, err := statProcess(os.Getpid())
	must.NoError(t, err)
	me := Container{InitPID: os.Getpid(), InitStartTime: self.startTime, BootID: boot}
	must.True(t, Alive(me))

	reused, earlier, nobody := me, me, me
	reused.InitStartTime--
	earlier.BootID = "another-boot"
	nobody.InitPID = 0
	must.False(t, Alive(reused))
	must.False(t, Alive(earlier))
	must.False(t, Alive(nobody))
	must.True(t, process{state: 'Z', threads: 1}.dead())
	must.False(t, process{state: 'Z', threads: 2}.dead())
}
