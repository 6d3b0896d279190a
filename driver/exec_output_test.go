package driver

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestTail(t *testing.T) {
	for _, piece := range []int{1, 7, 1000, maxExecOutput, 3*maxExecOutput + 1} {
		var kept tail
		var all bytes.Buffer
		for i := 0; all.Len() < 5*maxExecOutput; i++ {
			p := bytes.Repeat([]byte{byte('a' + i%26)}, piece)
			n, err := kept.Write(p)
			must.NoError(t, err)
			must.Eq(t, piece, n)
			all.Write(p)
			must.LessEq(t, 2*maxExecOutput, len(kept.kept))
		}
		must.True(t, bytes.Equal(all.Bytes()[all.Len()-maxExecOutput:], kept.bytes()), must.Sprint(piece))
	}
	var short tail
	must.SliceEmpty(t, short.bytes())
	fmt.Fprint(&short, "short")
	must.Eq(t, "short", string(short.bytes()))
}

// A check that writes without end gives no more than the end of it.
func TestExecTask_MuchOutput(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 600")
	d.start(cfg)
	const megabytes = "head -c 16000000 /dev/zero | tr '\\0' x"
	result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", megabytes + "; " + megabytes + " >&2; echo out; echo err >&2"},
		time.Minute)
	must.NoError(t, err)
	for end, output := range map[string][]byte{"xout\n": result.Stdout, "xerr\n": result.Stderr} {
		must.Eq(t, maxExecOutput, len(output))
		must.True(t, strings.HasSuffix(string(output), end))
	}
}
