package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuCalls are calls that ask single GPUs, one at a time for each GPU. They are
// made without the turn, so that a GPU that does not answer keeps nobody from
// asking the others. A session does not end while there are any. Its zero value
// is ready.
type gpuCalls struct {
	mu sync.Mutex
	// lanes hold a token each while their GPU is asked.
	lanes map[string]chan struct{}
	// handles are those of the GPUs that were asked in this session.
	handles map[string]gonvml.Device
	// underWay counts calls; drained is closed when there are none any more.
	underWay int
	drained  chan struct{}
	// symbols tells of which functions the library has.
	symbols map[string]bool
}

// errStillAsked says that a session can't be ended.
var errStillAsked = errors.New("an NVML call about a GPU has not returned, and the session cannot end before it does")

// askGPU asks questions of the GPU with this UUID.
func askGPU[T any](ctx context.Context, l *Library, uuid string, questions []question[T]) (*T, error) {
	lane := l.gpuCalls.lane(uuid)
	select {
	case lane <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("NVML is still busy with an earlier call about %s: %w", uuid, ctx.Err())
	}
	device, err := l.enter(ctx, uuid)
	if err != nil {
		<-lane
		return nil, err
	}
	return wait(ctx, func() (*T, error) {
		defer func() { <-lane }()
		answer := new(T)
		err := askAll(l, device, uuid, questions, answer)
		l.gpuCalls.leave(uuid, err)
		if err != nil {
			return nil, err
		}
		return answer, nil
	})
}

// enter returns the handle of a GPU for a call, after which the caller leaves.
func (l *Library) enter(ctx context.Context, uuid string) (gonvml.Device, error) {
	for {
		if device := l.gpuCalls.enter(uuid); device != nil {
			return device, nil
		}
		_, err := call(ctx, l, func() (struct{}, error) {
			device, err := l.find(uuid)
			if err == nil {
				l.gpuCalls.keep(uuid, device)
			}
			return struct{}{}, err
		})
		if err != nil {
			return nil, err
		}
	}
}

func (c *gpuCalls) lane(uuid string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lanes == nil {
		c.lanes = make(map[string]chan struct{})
	}
	if c.lanes[uuid] == nil {
		c.lanes[uuid] = make(chan struct{}, 1)
	}
	return c.lanes[uuid]
}

// keep notes a handle of this session. The caller has the library's turn.
func (c *gpuCalls) keep(uuid string, device gonvml.Device) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handles == nil {
		c.handles = make(map[string]gonvml.Device)
	}
	c.handles[uuid] = device
}

// enter begins a call; nil if there is no handle for it.
func (c *gpuCalls) enter(uuid string) gonvml.Device {
	c.mu.Lock()
	defer c.mu.Unlock()
	device := c.handles[uuid]
	if device != nil {
		c.underWay++
	}
	return device
}

// leave ends a call. After an error the GPU is looked up anew.
func (c *gpuCalls) leave(uuid string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.handles, uuid)
	}
	if c.underWay--; c.underWay == 0 && c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
}

// forgetHandles has all GPUs looked up anew.
func (c *gpuCalls) forgetHandles() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handles = nil
}

// end waits until no call is under way, for the session to end. The caller has
// the library's turn, so that none begins afterwards. The error is
// errStillAsked where one does not return.
func (c *gpuCalls) end() error {
	c.mu.Lock()
	c.handles = nil
	if c.underWay == 0 {
		c.mu.Unlock()
		return nil
	}
	if c.drained == nil {
		c.drained = make(chan struct{})
	}
	drained := c.drained
	c.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-time.After(waitGrace):
		return errStillAsked
	}
}

func (c *gpuCalls) forgetSymbols() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.symbols = make(map[string]bool)
}

// hasAll tells whether the library has all of these functions; look asks it.
func (c *gpuCalls) hasAll(symbols []string, look func(symbol string) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, symbol := range symbols {
		if _, asked := c.symbols[symbol]; !asked {
			c.symbols[symbol] = look(symbol)
		}
		if !c.symbols[symbol] {
			return false
		}
	}
	return true
}
