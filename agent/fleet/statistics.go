package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// statistics are what a node's clients measure of its devices.
type statistics struct {
	taken time.Time
	// devices are those that a claim has, or of which there is more to say, by ID.
	devices map[string]*deviceStatistics
	err     error
}

// deviceStatistics are the statistics of one device, by their names in docs/device.md.
type deviceStatistics struct {
	Claim       statistic
	Memory      statistic `json:"Claim memory"`
	State       statistic `json:"Memory state"`
	Busy        statistic `json:"GPU utilization"`
	Temperature statistic
	Power       statistic `json:"Power usage"`
}

// statistic is a text, a number, or a number of a whole.
type statistic struct {
	StringVal                          string
	IntNumeratorVal, IntDenominatorVal *int64
}

// claimed reports whether a claim has the device, in Nomad or outside.
func (d *deviceStatistics) claimed() bool { return d != nil && d.Claim.StringVal != "" }

// measured reports whether the device says what its GPU measures.
func (d *deviceStatistics) measured() bool {
	return d.Busy.IntNumeratorVal != nil || d.State.IntNumeratorVal != nil
}

// takeStatistics queries the statistics of a node, through Nomad's servers.
func takeStatistics(ctx context.Context, client *api.Client, nodeID string, timeout time.Duration) *statistics {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var answer struct {
		DeviceStats []struct {
			InstanceStats map[string]struct {
				Stats struct{ Attributes *deviceStatistics }
			}
		}
	}
	s := &statistics{taken: time.Now(), devices: make(map[string]*deviceStatistics)}
	query := &api.QueryOptions{Params: map[string]string{"node_id": nodeID}}
	if _, err := client.Raw().Query("/v1/client/stats", &answer, query.WithContext(ctx)); err != nil {
		s.err = fmt.Errorf("read the node's statistics: %w", err)
		return s
	}
	for _, group := range answer.DeviceStats {
		for id, instance := range group.InstanceStats {
			if d := instance.Stats.Attributes; d != nil && (d.claimed() || d.measured()) {
				s.devices[id] = d
			}
		}
	}
	return s
}
