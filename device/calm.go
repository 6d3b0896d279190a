package device

import (
	"reflect"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
)

// calmPeriod is how long after a message to Nomad that waits which can: each
// message registers the node anew at the servers.
const calmPeriod = 30 * time.Second

// calm is the part of what Nomad is told that can wait for calmPeriod.
type calm struct {
	// used counts the slices that claims have, in steps, by GPU.
	used map[string]int64
	// withheld are the slices that cannot be had because of strangers, with the reason.
	withheld map[string]string
}

// teller decides when Nomad is told what. It belongs to the fingerprint.
type teller struct {
	*node
	// groups and calm are what Nomad was told last, and told is when.
	groups []*ndevice.DeviceGroup
	calm   *calm
	told   time.Time
	// due fires when what waits has waited long enough; nil if nothing does.
	due <-chan time.Time
}

// news returns what to tell Nomad now; not ok if there is nothing. What can
// wait goes along with what can't, and at the latest when it is due.
func (t *teller) news(taken *taken) (groups []*ndevice.DeviceGroup, ok bool) {
	groups = t.groupsOf(taken)
	switch {
	case t.calm == nil: // the agent waits for the first message, even if there are no devices
		return groups, true
	case reflect.DeepEqual(t.groups, groups):
		t.due = nil
		return nil, false
	case reflect.DeepEqual(t.calm, taken.calm):
		return groups, true
	}
	old := *taken
	old.calm = t.calm
	if !reflect.DeepEqual(t.groups, t.groupsOf(&old)) {
		return groups, true
	}
	wait := calmPeriod - t.now().Sub(t.told)
	if wait <= 0 {
		return groups, true
	}
	if t.due == nil {
		t.due = t.after(wait)
	}
	return nil, false
}

// sent takes in that Nomad was told.
func (t *teller) sent(groups []*ndevice.DeviceGroup, calm *calm) {
	t.groups, t.calm, t.told, t.due = groups, calm, t.now(), nil
}
