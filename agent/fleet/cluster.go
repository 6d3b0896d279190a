package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/internal/nodestats"
	"github.com/tranche-gpu/tranche/internal/recent"
)

// cluster is what all viewers may see who may read nodes: it is queried with the token of whoever comes first, for all.
type cluster struct {
	times   times
	list    recent.Value[[]*api.NodeListStub]
	queries sync.WaitGroup

	mu         sync.Mutex
	statistics map[string]*nodestats.Node
	// began is when the statistics were last queried; swept is closed when all nodes have answered, or did not in time.
	began time.Time
	swept chan struct{}
}

// nodes returns the nodes that have GPUs of Tranche's. Callers must not modify them.
func (c *cluster) nodes(ctx context.Context, client *api.Client) ([]*api.NodeListStub, error) {
	all, err := c.list.Get(c.times.lists, func() ([]*api.NodeListStub, error) {
		all, err := nodes(context.WithoutCancel(ctx), client) // for the others, too
		return slices.DeleteFunc(all, func(n *api.NodeListStub) bool { return !hasGPUs(n) }), err
	})
	if err != nil {
		c.list.Drop() // another's token may do
	}
	return all, err
}

// allStatistics returns what is known of nodes, by their IDs, and has what is old queried.
func (c *cluster) allStatistics(ctx context.Context, client *api.Client, nodes []*api.NodeListStub) map[string]*nodestats.Node {
	swept := c.sweep(context.WithoutCancel(ctx), client, nodes)
	timeout := time.NewTimer(c.times.patience)
	defer timeout.Stop()
	select {
	case <-swept:
	case <-timeout.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.statistics)
}

// sweep queries the nodes, unless that has just been done or is under way.
func (c *cluster) sweep(ctx context.Context, client *api.Client, nodes []*api.NodeListStub) (swept <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swept != nil {
		select {
		case <-c.swept:
		default:
			return c.swept
		}
	}
	if time.Since(c.began) < c.times.statistics {
		return c.swept
	}
	done := make(chan struct{})
	c.began, c.swept = time.Now(), done
	c.keepOnly(nodes)
	c.queries.Go(func() {
		defer close(done)
		nodestats.QueryAll(ctx, client, nodes, c.times.timeout, func(id string, n *nodestats.Node) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.statistics[id] = n
		})
	})
	return done
}

// keepOnly forgets nodes that there are no longer.
func (c *cluster) keepOnly(nodes []*api.NodeListStub) {
	kept := make(map[string]*nodestats.Node, len(nodes))
	for _, n := range nodes {
		if s := c.statistics[n.ID]; s != nil && n.Status == api.NodeStatusReady {
			kept[n.ID] = s
		}
	}
	c.statistics = kept
}
