package share

import (
	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/size"
)

// Occupancy is what keeps healthy devices from Nomad at one moment, by what the ledger and the driver say.
type Occupancy struct {
	// ExternalSlices and ExternalGPUs are claims from outside Nomad, by the slices and the GPUs that they use.
	ExternalSlices, ExternalGPUs map[string]*claim.Claim
	// Earlier are Nomad's own claims from before a change of the configuration, by what they still use: a GPU that was
	// in another mode, a MIG instance, or slices of another size.
	Earlier map[string]*claim.Claim
	// Used are the slices that any claim uses.
	Used map[string]bool
	// LedgerProblem is why no claim can be made; empty if there is no such reason.
	LedgerProblem string
	Deferrable    *Deferrable
}

// Deferrable is the part of what is published to Nomad whose changes are rate limited.
type Deferrable struct {
	// SlicesUsed counts the slices that claims use, in steps, by GPU; nil if it is not published.
	SlicesUsed map[string]int64
	// Blocked are free slices whose memory unmanaged processes use, with the reason.
	Blocked map[string]string
}

// NewOccupancy returns one in which nothing is used.
func NewOccupancy() *Occupancy {
	return &Occupancy{
		ExternalSlices: make(map[string]*claim.Claim), ExternalGPUs: make(map[string]*claim.Claim),
		Earlier: make(map[string]*claim.Claim), Used: make(map[string]bool), Deferrable: &Deferrable{},
	}
}

// MarkExternal makes a healthy device unhealthy that a claim from outside Nomad uses; the claim may be nil.
func MarkExternal(d *ndevice.Device, user *claim.Claim) {
	if user != nil && d.Healthy {
		d.Healthy = false
		d.HealthDesc = "used outside Nomad by claim " + user.ID + " (" + user.Owner + ")"
	}
}

// MarkEarlier makes the devices unhealthy that wait for a claim from before a change of the configuration.
func (o *Occupancy) MarkEarlier(g *GPU, group *ndevice.DeviceGroup) {
	for _, d := range group.Devices {
		user := o.Earlier[g.UUID]
		if user == nil {
			user = o.Earlier[d.ID]
		}
		if user != nil && d.Healthy {
			d.Healthy = false
			d.HealthDesc = "waits for claim " + user.ID + ", whose GPU is in mode " + describeMode(user) + " until its task has ended"
		}
	}
}

func describeMode(c *claim.Claim) string {
	if c.Mode != claim.ModeSlice && !MadeOnDemand(c) {
		return string(c.Mode)
	}
	return string(c.Mode) + " (" + size.Format(c.SliceSize()) + ")"
}

// MadeOnDemand reports whether the MIG instance of a claim was created for it.
func MadeOnDemand(c *claim.Claim) bool { return c.Mode == claim.ModeMIG && c.SliceBytes > 0 }

// MarkBlocked makes free slices unhealthy whose memory unmanaged processes use.
func (o *Occupancy) MarkBlocked(group *ndevice.DeviceGroup) {
	for _, d := range group.Devices {
		if reason := o.Deferrable.Blocked[d.ID]; reason != "" && !o.Used[d.ID] && d.Healthy {
			d.Healthy, d.HealthDesc = false, reason
		}
	}
}

// MarkUnusable makes all devices unhealthy while no claim can be made.
func (o *Occupancy) MarkUnusable(group *ndevice.DeviceGroup) {
	if o.LedgerProblem != "" {
		MarkUnhealthy(group, o.LedgerProblem)
	}
}
