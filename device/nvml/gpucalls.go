package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuCalls are queries of single GPUs, one at a time for each GPU. They are made without Library.callLock, so that a GPU
// that does not answer does not block queries of the others. A session does not end while one is running. The zero value
// is ready to use.
type gpuCalls struct {
	mu sync.Mutex
	// locks hold a token each while their GPU is queried.
	locks map[string]chan struct{}
	// handles are those of the GPUs that were queried in this session.
	handles map[string]gonvml.Device
	// running counts calls; drained is closed when the last one has ended.
	running int
	drained chan struct{}
	// symbols says which functions the library has.
	symbols map[string]bool
}

// errCallRunning says that a session cannot be ended.
var errCallRunning = errors.New("an NVML call about a GPU has not returned, and the session cannot end before it does")

// queryGPU queries the GPU with this UUID.
func queryGPU[T any](ctx context.Context, l *Library, uuid string, queries []query[T]) (*T, error) {
	lock := l.gpuCalls.lock(uuid)
	select {
	case lock <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("NVML is still busy with an earlier call about %s: %w", uuid, ctx.Err())
	}
	device, err := l.enter(ctx, uuid)
	if err != nil {
		<-lock
		return nil, err
	}
	return wait(ctx, func() (*T, error) {
		defer func() { <-lock }()
		answer := new(T)
		err := queryAll(l, device, uuid, queries, answer)
		l.gpuCalls.leave(uuid, err)
		if err != nil {
			return nil, err
		}
		return answer, nil
	})
}

// enter returns the handle of a GPU for a call, after which the caller calls gpuCalls.leave.
func (l *Library) enter(ctx context.Context, uuid string) (gonvml.Device, error) {
	for {
		if device := l.gpuCalls.enter(uuid); device != nil {
			return device, nil
		}
		_, err := call(ctx, l, func() (struct{}, error) {
			device, err := l.find(uuid)
			if err == nil {
				l.gpuCalls.setHandle(uuid, device)
			}
			return struct{}{}, err
		})
		if err != nil {
			return nil, err
		}
	}
}

func (c *gpuCalls) lock(uuid string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locks == nil {
		c.locks = make(map[string]chan struct{})
	}
	if c.locks[uuid] == nil {
		c.locks[uuid] = make(chan struct{}, 1)
	}
	return c.locks[uuid]
}

// setHandle records a handle of this session. The caller holds Library.callLock.
func (c *gpuCalls) setHandle(uuid string, device gonvml.Device) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handles == nil {
		c.handles = make(map[string]gonvml.Device)
	}
	c.handles[uuid] = device
}

// enter begins a call and returns the handle for it; nil if there is none.
func (c *gpuCalls) enter(uuid string) gonvml.Device {
	c.mu.Lock()
	defer c.mu.Unlock()
	device := c.handles[uuid]
	if device != nil {
		c.running++
	}
	return device
}

// leave ends a call. After an error the GPU's handle is looked up again.
func (c *gpuCalls) leave(uuid string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.handles, uuid)
	}
	if c.running--; c.running == 0 && c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
}

// clearHandles has the handles of all GPUs looked up again.
func (c *gpuCalls) clearHandles() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handles = nil
}

// end waits until no call is running, so that the session can end. The caller holds Library.callLock, so that none begins
// afterwards. The error is errCallRunning if one does not return.
func (c *gpuCalls) end() error {
	c.mu.Lock()
	c.handles = nil
	if c.running == 0 {
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
		return errCallRunning
	}
}

func (c *gpuCalls) clearSymbols() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.symbols = make(map[string]bool)
}

// hasAll reports whether the library has all of these functions, by the function lookUp.
func (c *gpuCalls) hasAll(symbols []string, lookUp func(symbol string) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, symbol := range symbols {
		if _, known := c.symbols[symbol]; !known {
			c.symbols[symbol] = lookUp(symbol)
		}
		if !c.symbols[symbol] {
			return false
		}
	}
	return true
}
