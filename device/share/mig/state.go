package mig

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/share"
)

// state is what exists at one moment on a GPU with on-demand instances.
type state struct {
	// enabled is whether MIG is on.
	enabled bool
	// kept are claims whose container is alive or may still be started.
	kept []*claim.Claim
	// sharing are such claims from when several tasks shared an instance, one for each instance, by its UUID.
	sharing map[string]*claim.Claim
	// dormant are claims whose instance stays only as long as nothing else needs its room.
	dormant []*claim.Claim
	// occupied are the places of claims that are kept and of other instances in use.
	occupied []mig.Instance
	// idle are the other instances.
	idle []idleInstance
	// users names who uses the occupied places.
	users []string
}

// idleInstance is an instance that nothing uses.
type idleInstance struct {
	nvml.MIGInstance
	// claim is the dormant claim on it; nil if there is none.
	claim *claim.Claim
}

// readState reads the state of a GPU from the driver and the ledger. The wanted slices are being given to a new task, so
// that no container comes any more for a claim on them. The caller has locked the GPU.
//
// The driver is queried first: a claim is made before its instance, so each instance that the driver lists has its claim
// in the ledger by then.
func (m *OnDemand) readState(ctx context.Context, g *share.GPU, wanted []string) (*state, error) {
	read, err := m.Driver.Partitioner.ReadMIG(ctx, g.UUID)
	if err != nil {
		return nil, err
	}
	claims, problems, err := m.Ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the claims on the GPU %s: %w", g.UUID, err)
	}
	s := &state{enabled: read.Enabled, sharing: make(map[string]*claim.Claim)}
	for _, c := range claims {
		switch {
		case c.Mode != claim.ModeMIG && m.Ledger.InUse(c):
			s.sharing[c.GPU.UUID] = c
		case c.Mode == claim.ModeMIG && c.PhysicalGPU() == g.UUID:
			s.addClaim(c, m.keeps(c, wanted))
		}
	}
	hidden := mayHide(problems, g.UUID)
	for _, instance := range read.Instances {
		if err := m.addInstance(ctx, s, instance, hidden); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// keeps reports whether a claim still needs its instance.
func (m *OnDemand) keeps(c *claim.Claim, wanted []string) bool {
	switch {
	case c.Making():
		return m.Ledger.Clock.Now().Sub(c.Created) <= claim.MakeWithin
	case c.Container == nil && hasAny(c, wanted):
		return false
	}
	return m.Ledger.InUse(c)
}

func (s *state) addClaim(c *claim.Claim, kept bool) {
	if !kept {
		s.dormant = append(s.dormant, c)
		return
	}
	s.kept = append(s.kept, c)
	s.occupied = append(s.occupied, placeOf(c))
	s.users = append(s.users, "claim "+c.ID)
}

func placeOf(c *claim.Claim) mig.Instance {
	return mig.Instance{Profile: c.MIG.Profile, Place: mig.Place{Start: c.MIG.Start, Size: c.MIG.Size}}
}

// addInstance finds out whether an instance is in use. An instance in the place of a claim that is kept is that claim's.
// hidden is whether a claim that cannot be read may be on it.
func (m *OnDemand) addInstance(ctx context.Context, s *state, instance nvml.MIGInstance, hidden bool) error {
	if slices.ContainsFunc(s.kept, func(c *claim.Claim) bool { return placeOf(c).Overlaps(instance.Place) }) {
		return nil
	}
	user := ""
	switch {
	case m.Ignored[instance.UUID]:
		user = instance.UUID + " of ignored_gpu_ids"
	case s.sharing[instance.UUID] != nil:
		user = "claim " + s.sharing[instance.UUID].ID
	case instance.UUID != "": // otherwise nothing can use it
		processes, err := m.Driver.Processes(ctx, instance.UUID)
		if err != nil {
			return fmt.Errorf("list the processes on the MIG instance %s: %w", instance.UUID, err)
		}
		if len(processes) > 0 {
			user = fmt.Sprintf("process %d", processes[0].PID)
		}
	}
	dormant := s.claimOn(instance)
	if dormant == nil && hidden && instance.UUID != "" {
		user = "a claim that cannot be read"
	}
	if user != "" {
		s.occupied = append(s.occupied, instance.Instance)
		s.users = append(s.users, user)
		return nil
	}
	s.idle = append(s.idle, idleInstance{instance, dormant})
	return nil
}

// claimOn returns the dormant claim on an instance; nil if there is none. The UUID alone does not identify it: the driver
// gives an instance the UUID of an earlier one in the same place.
func (s *state) claimOn(instance nvml.MIGInstance) *claim.Claim {
	for _, c := range s.dormant {
		if !c.Making() && c.GPU.UUID == instance.UUID && placeOf(c).Place == instance.Place {
			return c
		}
	}
	return nil
}

// mayHide reports whether a claim whose record cannot be read may be on an instance of a GPU.
func mayHide(problems []claim.Problem, uuid string) bool {
	return slices.ContainsFunc(problems, func(p claim.Problem) bool {
		named := func(name string) bool { return strings.HasPrefix(name, uuid) }
		return p.ClaimID != "" && (p.GPUUUID == "" || named(p.GPUUUID) || slices.ContainsFunc(p.MayHold, named))
	})
}

// spare returns the idle instances to keep if possible, because a container may come back for them. The wanted slices
// are being given to a new task.
func (s *state) spare(wanted []string) []mig.Instance {
	var places []mig.Instance
	for _, i := range s.idle {
		if i.claim != nil && !hasAny(i.claim, wanted) {
			places = append(places, i.Instance)
		}
	}
	return places
}

// hasAny reports whether a claim has one of these slices.
func hasAny(c *claim.Claim, ids []string) bool {
	return slices.ContainsFunc(c.Slices, func(s string) bool { return slices.Contains(ids, s) })
}
