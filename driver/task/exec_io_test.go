package task

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/shoenig/test/must"
)

// outlet is where output goes: it says that the first has come, and takes it when it is opened.
type outlet struct {
	strings.Builder
	come, open chan struct{}
	once       sync.Once
}

func (g *outlet) Write(p []byte) (int, error) {
	g.once.Do(func() { close(g.come) })
	<-g.open
	return g.Builder.Write(p)
}

// What the client does with a process that was removed, in its order, while nobody has read yet what it wrote last.
func TestExecStreams(t *testing.T) {
	const first, last = "what it wrote first\n", "what it wrote last\n"
	for name, c := range map[string]struct {
		started, gaveUp bool
		want            string
	}{
		"started":                 {started: true, want: first + last},
		"not started":             {want: first},
		"nobody wants the output": {started: true, gaveUp: true, want: first},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &outlet{come: make(chan struct{}), open: make(chan struct{})}
			var started atomic.Bool
			create := cio.NewCreator(cio.WithStreams(nil, out, io.Discard), cio.WithFIFODir(t.TempDir()))
			streams, err := readToEnd(ctx, create, &started)("exec")
			must.NoError(t, err)
			for _, fifo := range []string{streams.Config().Stderr, streams.Config().Stdout} {
				shim, err := os.OpenFile(fifo, os.O_WRONLY, 0)
				must.NoError(t, err)
				defer shim.Close()
				if fifo == streams.Config().Stderr {
					must.NoError(t, shim.Close())
					continue
				}
				_, err = shim.WriteString(first)
				must.NoError(t, err)
				<-out.come
				_, err = shim.WriteString(last)
				must.NoError(t, errors.Join(err, shim.Close()))
			}
			started.Store(c.started)
			if c.gaveUp {
				cancel()
			}
			streams.Cancel()
			close(out.open)
			streams.Wait()
			must.NoError(t, streams.Close())
			must.Eq(t, c.want, out.String())
		})
	}
}
