// Package mig implements mode mig: MIG instances, either those that the configuration declares (Mode, Layout) or instances
// that are created when slices are reserved (OnDemand). Package device/mig computes where instances fit.
package mig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/size"
)

// Mode implements share.Mode. It offers the instances that the configuration declares; each is a device of the type of
// whole GPUs, in a group by the driver's name for it, as nomad-device-nvidia has them. Instances that several tasks share are
// left to the mode in which they do: see Shared. Of GPUs for which nothing is declared it offers slices: see OnDemand.
type Mode struct {
	Driver *share.Driver
	Ledger *share.Ledger
	// Ignored are UUIDs of MIG instances that are not offered.
	Ignored  map[string]bool
	OnDemand *OnDemand
}

// Check implements share.Mode. It returns whether a GPU can have instances of all profiles, or one that holds a slice, by
// what is known of its model. The driver lists profiles only while MIG is on: if its answer counted, a configuration that
// was accepted before could end a later start. So its answer can only allow what the table of models does not know, and
// what turns out to be impossible later makes the GPU's devices unhealthy.
func (m *Mode) Check(ctx context.Context, g nvml.GPU, p share.Policy) error {
	if !g.MIG.Capable {
		return errors.New("it has no MIG")
	}
	model, known := mig.ModelOf(g.Name, g.MemoryBytes)
	if !known {
		return nil
	}
	wrong := checkInstances(&p, model)
	if wrong == nil {
		return nil
	}
	profiles, err := m.Driver.Partitioner.MIGProfiles(ctx, g.UUID)
	if err != nil || len(profiles) == 0 {
		return wrong
	}
	return checkInstances(&p, mig.Model{Profiles: profiles, LargestBytes: mig.Largest(nil, mig.Plain(profiles))})
}

// checkInstances returns why a GPU of this model cannot have the instances of a policy.
func checkInstances(p *share.Policy, model mig.Model) error {
	if p.OnDemand() {
		return checkSlice(p, model.LargestBytes)
	}
	wanted, err := model.Named(p.Profiles)
	if err != nil {
		return err
	}
	if _, ok := mig.Pack(nil, wanted); !ok {
		return errNoFit
	}
	for _, profile := range wanted {
		if in := p.Instances; in != nil && profile.Bytes > 0 && profile.Bytes < in.SliceBytes { // 0 is unknown
			return fmt.Errorf("slice_memory is %s, but an instance %s has at most %s: set it to less", size.Format(in.SliceBytes),
				profile.Name, size.Format(profile.Bytes))
		}
	}
	return nil
}

// Problem implements share.Mode.
func (m *Mode) Problem(g *share.GPU) string {
	if g.OnDemand() {
		return m.OnDemand.problem(g)
	}
	return ""
}

// Groups implements share.Mode.
func (m *Mode) Groups(g *share.GPU, o *share.Occupancy) []*ndevice.DeviceGroup {
	if g.OnDemand() {
		return m.OnDemand.groups(g, o)
	}
	groups := InstanceGroups(g, m.instances(g))
	if missing := missing(g); len(missing) > 0 {
		groups = append(groups, missingGroup(g, missing))
	}
	return groups
}

// Has implements share.Mode.
func (m *Mode) Has(g *share.GPU, id string) bool {
	_, ok := FindInstance(m.instances(g), id)
	return ok || g.OnDemand() && g.HasSlice(id)
}

// instances returns those that one task each has.
func (m *Mode) instances(g *share.GPU) []nvml.MIGInstance {
	if g.Instances != nil {
		return nil
	}
	return WithoutIgnored(declared(g), m.Ignored)
}

// Shared returns the declared instances of a GPU that several tasks share.
func Shared(g *share.GPU, ignored map[string]bool) []nvml.MIGInstance {
	if g.Instances == nil {
		return nil
	}
	return WithoutIgnored(declared(g), ignored)
}

// Reserve implements share.Mode.
func (m *Mode) Reserve(ctx context.Context, devices []share.Device) (*share.Reservation, error) {
	var requests []claim.Request
	for _, d := range devices {
		if d.GPU.OnDemand() {
			return m.OnDemand.reserve(ctx, devices)
		}
		if instance, ok := FindInstance(d.GPU.MIG.Instances, d.ID); ok {
			requests = append(requests, InstanceRequest(&d.GPU, instance))
		}
	}
	tokens, err := m.Ledger.Make(ctx, requests...)
	return &share.Reservation{Tokens: tokens, Visible: share.IDs(devices)}, err
}

// Stats implements share.Mode.
func (m *Mode) Stats(g *share.GPU, u *share.Usage, now time.Time) map[share.GroupKey]share.DeviceStats {
	if g.OnDemand() {
		return m.OnDemand.stats(g, u, now)
	}
	all := InstanceStats(g, m.instances(g), u, now)
	if len(missing(g)) > 0 {
		all[share.GroupKey{Type: share.GPUType, Name: missingName(g)}] = share.DeviceStats{
			g.UUID: u.GPUs[g.UUID].Whole(nil, now),
		}
	}
	return all
}

// declared returns the GPU's instances that count as the declared ones: of each profile as many as are declared.
func declared(g *share.GPU) []nvml.MIGInstance {
	left := make(map[string]int)
	for _, name := range g.Profiles {
		left[name]++
	}
	var declared []nvml.MIGInstance
	for _, instance := range g.MIG.Instances {
		if instance.UUID != "" && left[instance.Profile] > 0 {
			left[instance.Profile]--
			declared = append(declared, instance)
		}
	}
	return declared
}

// missing returns the declared profiles of which there are too few instances.
func missing(g *share.GPU) []string {
	missing := slices.Clone(g.Profiles)
	for _, instance := range declared(g) {
		i := slices.Index(missing, instance.Profile)
		missing = slices.Delete(missing, i, i+1)
	}
	return missing
}

// missingName is not the name of any instance, so that instances that exist keep attributes of their own.
func missingName(g *share.GPU) string { return g.Name + " MIG" }

// missingGroup returns one unhealthy device that stands for all missing instances, so that Nomad shows the reason.
func missingGroup(g *share.GPU, missing []string) *ndevice.DeviceGroup {
	reason := cmp.Or(g.Waits, "they are created at the next fingerprint")
	group := g.Group(share.GPUType, missingName(g), share.IsolationHardware)
	group.Devices = []*ndevice.Device{g.Device(g.UUID)}
	share.MarkUnhealthy(group, "MIG instances "+strings.Join(missing, ", ")+" are not there: "+reason)
	return group
}
