// Package client is the driver's connection to containerd: its namespace and snapshotter, the deadlines of calls, and what
// happens to calls while containerd is unavailable. It must not depend on tasks.
package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tranche-gpu/tranche/driver/recoverable"
)

// CallTimeout bounds a call to containerd that should take no time. Calls wait for an unavailable containerd, so this is
// also how long they wait.
const CallTimeout = 30 * time.Second

// servingTimeout is how long CheckServing waits for an answer.
const servingTimeout = 10 * time.Second

// Config says which containerd is used, and how.
type Config struct {
	// Address is the path of containerd's socket.
	Address string
	// Namespace is the containerd namespace of everything that the driver makes.
	Namespace string
	// Snapshotter is the one that containers and images use.
	Snapshotter string
}

// Client is a client of containerd with the goroutines that use it.
type Client struct {
	*containerd.Client
	Config
	// Owner is the value of the label naming.Owner for this plugin process.
	Owner string

	ctx    context.Context
	cancel context.CancelFunc

	// work counts the goroutines that Go started; once ended is set there are no new ones.
	mu    sync.Mutex
	work  sync.WaitGroup
	ended bool
}

// New returns a client that ends with ctx or Close. containerd need not run yet.
func New(ctx context.Context, config Config, opts ...containerd.Opt) (*Client, error) {
	opts = append(opts,
		containerd.WithExtraDialOpts([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		})}),
		// Calls wait for an unavailable containerd, up to their deadline.
		containerd.WithCallOpts([]grpc.CallOption{grpc.WaitForReady(true)}))
	owner, err := thisOwner()
	if err != nil {
		return nil, err
	}
	connected, err := containerd.New(config.Address, opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(ctx, config.Namespace))
	return &Client{Client: connected, Config: config, Owner: owner, ctx: ctx, cancel: cancel}, nil
}

// Close ends the connection, and returns when all goroutines that Go started have ended.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	err := c.Client.Close()
	c.work.Wait()
	return err
}

// Go runs f, which has to end with the client's context, in a goroutine that Close waits for. A client that has been
// closed starts none.
func (c *Client) Go(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.work.Go(f)
	}
}

// Context returns the context that ends with the client, with its namespace.
func (c *Client) Context() context.Context { return c.ctx }

// Pause waits, and reports whether the client is still open then.
func (c *Client) Pause(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-c.ctx.Done():
		return false
	}
}

// Namespaced returns a context for calls in the client's namespace.
func (c *Client) Namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, c.Namespace)
}

// Call returns a context for one call, or a few, that should take no time.
func (c *Client) Call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, CallTimeout)
}

// CheckServing returns an error unless containerd answers now.
func (c *Client) CheckServing() error {
	ctx, cancel := context.WithTimeout(c.ctx, servingTimeout)
	defer cancel()
	serving, err := c.IsServing(ctx)
	if err == nil && !serving {
		err = errors.New("it is up but not serving")
	}
	if err != nil {
		return recoverable.Error(fmt.Errorf("containerd at %s does not answer: %w; check that it runs",
			c.Address, err))
	}
	return nil
}
