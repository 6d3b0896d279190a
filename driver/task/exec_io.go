package task

import (
	"context"
	"sync/atomic"

	"github.com/containerd/containerd/v2/pkg/cio"
)

// execStreams are the streams of an executed command, of which nothing is lost. containerd's client closes them as soon as
// the shim has removed the process, and drops output that was not read yet: on a busy node all of a short command's. Once
// the process has started, the shim has opened its ends and closes them when it removes the process, so that it is enough to
// read to the end.
type execStreams struct {
	cio.IO
	// ctx is done when the caller no longer needs the output.
	ctx     context.Context
	started *atomic.Bool
}

// readToEnd returns a creator whose streams are read to their end once started is set.
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
