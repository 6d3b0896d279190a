package task

import (
	"context"
	"sync/atomic"

	"github.com/containerd/containerd/v2/pkg/cio"
)

// execStreams are the streams of an executed command, of which nothing is lost. containerd's client closes them as soon as
// the shim has removed the process, with what the process has written and nobody read yet; a short command's whole output
// on a busy node. Once the process has started, the shim has opened its ends and closes them when it removes the process,
// so that it is enough to read to the end.
type execStreams struct {
	cio.IO
	// ctx is done when nobody wants the output any more.
	ctx     context.Context
	started *atomic.Bool
}

// readToEnd has a process that is created with create be read to its end once started says so.
func readToEnd(ctx context.Context, create cio.Creator, started *atomic.Bool) cio.Creator {
	return func(id string) (cio.IO, error) {
		streams, err := create(id)
		if err != nil {
			return nil, err
		}
		return &execStreams{IO: streams, ctx: ctx, started: started}, nil
	}
}

// Cancel implements cio.IO.
func (s *execStreams) Cancel() {
	if !s.started.Load() || s.ctx.Err() != nil {
		s.IO.Cancel()
	}
}
