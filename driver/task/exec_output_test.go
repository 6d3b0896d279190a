package task

import (
	"bytes"
	"fmt"
	"testing"

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
