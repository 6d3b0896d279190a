// Package nodestats queries what the clients of Nomad's nodes measure of their devices.
package nodestats

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node is what a node's client says of its devices.
type Node struct {
	Taken time.Time
	// Devices are those that a claim has, or of which there is more to say, by ID.
	Devices map[string]*Device
	Err     error
}

// Device has the statistics of one device, by their names in docs/device.md.
type Device struct {
	Claim       Statistic
	Memory      Statistic `json:"Claim memory"`
	State       Statistic `json:"Memory state"`
	Busy        Statistic `json:"GPU utilization"`
	Temperature Statistic
	Power       Statistic `json:"Power usage"`
}

// Statistic is a text, a number, or a number of a whole.
type Statistic struct {
	StringVal                          string
	IntNumeratorVal, IntDenominatorVal *int64
}

// Claimed reports whether a claim has the device, in Nomad or outside.
func (d *Device) Claimed() bool { return d != nil && d.Claim.StringVal != "" }

// Measured reports whether the device says what its GPU measures.
func (d *Device) Measured() bool {
	return d.Busy.IntNumeratorVal != nil || d.State.IntNumeratorVal != nil
}

// MostQueries is how many nodes are queried at once.
const MostQueries = 16

// QueryAll queries those of the nodes that are ready, through Nomad's servers, and passes on what each says, concurrently. A node has
// the timeout.
func QueryAll(ctx context.Context, client *api.Client, nodes []*api.NodeListStub, timeout time.Duration, take func(id string, n *Node)) {
	var all sync.WaitGroup
	defer all.Wait()
	free := make(chan struct{}, MostQueries)
	for _, n := range nodes {
		if n.Status != api.NodeStatusReady {
			continue
		}
		free <- struct{}{}
		all.Go(func() {
			s := query(ctx, client, n.ID, timeout)
			<-free
			take(n.ID, s)
		})
	}
}

func query(ctx context.Context, client *api.Client, id string, timeout time.Duration) *Node {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var answer struct {
		DeviceStats []struct {
			InstanceStats map[string]struct {
				Stats struct{ Attributes *Device }
			}
		}
	}
	n := &Node{Taken: time.Now(), Devices: make(map[string]*Device)}
	options := &api.QueryOptions{Params: map[string]string{"node_id": id}}
	if _, err := client.Raw().Query("/v1/client/stats", &answer, options.WithContext(ctx)); err != nil {
		n.Err = fmt.Errorf("read the node's statistics: %w", err)
		return n
	}
	for _, group := range answer.DeviceStats {
		for id, instance := range group.InstanceStats {
			if d := instance.Stats.Attributes; d != nil && (d.Claimed() || d.Measured()) {
				n.Devices[id] = d
			}
		}
	}
	return n
}
