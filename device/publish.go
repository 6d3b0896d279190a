package device

import (
	"reflect"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/device/share"
)

// publishInterval is the shortest time from a message to Nomad to the next, if only deferrable changes are to be
// published: each message makes Nomad register the node again at the servers.
const publishInterval = 30 * time.Second

// publisher decides when devices are published to Nomad. It belongs to the fingerprint loop.
type publisher struct {
	// groups returns the device groups for an occupancy.
	groups func(*share.Occupancy) []*ndevice.DeviceGroup
	clock  *share.Clock

	// lastGroups and lastDeferrable were published last, at lastTime; nil before the first message.
	lastGroups     []*ndevice.DeviceGroup
	lastDeferrable *share.Deferrable
	lastTime       time.Time
	// checked is when pending was called last.
	checked time.Time
	// due fires when deferred changes are to be published; nil if there are none.
	due <-chan time.Time
}

// pending returns the groups to publish now; not ok if there is nothing to publish yet. Deferrable changes are published
// along with others, or when they are due.
func (p *publisher) pending(o *share.Occupancy) (groups []*ndevice.DeviceGroup, ok bool) {
	groups, p.checked = p.groups(o), p.clock.Now()
	switch {
	case p.lastDeferrable == nil: // the agent waits for the first message, even if there are no devices
		return groups, true
	case reflect.DeepEqual(p.lastGroups, groups):
		p.due = nil
		return nil, false
	case reflect.DeepEqual(p.lastDeferrable, o.Deferrable):
		return groups, true
	}
	old := *o
	old.Deferrable = p.lastDeferrable
	if !reflect.DeepEqual(p.lastGroups, p.groups(&old)) {
		return groups, true
	}
	wait := publishInterval - p.checked.Sub(p.lastTime)
	if wait <= 0 {
		return groups, true
	}
	if p.due == nil {
		p.due = p.clock.After(wait)
	}
	return nil, false
}

// published records that groups were published.
func (p *publisher) published(groups []*ndevice.DeviceGroup, deferrable *share.Deferrable) {
	p.lastGroups, p.lastDeferrable, p.lastTime, p.due = groups, deferrable, p.checked, nil
}
