package device

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// standing is what there is at one moment on a GPU whose instances are made on
// demand.
type standing struct {
	enabled bool
	// kept are claims whose container lives or may still come, dormant those whose
	// instance stays only as long as nobody wants its room.
	kept, dormant []*claim.Claim
	// stay are places that nothing else may take: those of claims that are kept,
	// and those of other instances that somebody uses.
	stay []mig.Instance
	// idle are the other instances.
	idle []idleInstance
	// users says who is behind stay.
	users []string
}

// idleInstance is an instance that nobody uses.
type idleInstance struct {
	nvml.MIGInstance
	// claim is the dormant claim on it; nil if there is none.
	claim *claim.Claim
}

// look asks the driver and the ledger what there is on a GPU. wanted are slices
// that Nomad gives to somebody else now, so that no container comes any more for
// a claim on them. The caller has the GPU's turn.
//
// The driver comes first: a claim is there before its instance, so that each
// instance which the driver tells of has its claim in the ledger by then.
func (n *node) look(ctx context.Context, g *gpu, wanted []string) (*standing, error) {
	read, err := n.partitioner.ReadMIG(ctx, g.UUID)
	if err != nil {
		return nil, err
	}
	claims, problems, err := n.ledger.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the claims on the GPU %s: %w", g.UUID, err)
	}
	s := &standing{enabled: read.Enabled}
	for _, c := range claims {
		if c.Mode == claim.ModeMIG && c.PhysicalGPU() == g.UUID {
			s.addClaim(c, n.keeps(c, wanted))
		}
	}
	hidden := mayHide(problems, g.UUID)
	for _, instance := range read.Instances {
		if err := n.addInstance(ctx, s, instance, hidden); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// keeps tells whether a claim still needs its instance.
func (n *node) keeps(c *claim.Claim, wanted []string) bool {
	switch {
	case c.Making():
		return n.now().Sub(c.Created) <= claim.MakeWithin
	case c.Container == nil && shares(c, wanted):
		return false
	}
	return n.holds(c)
}

func (s *standing) addClaim(c *claim.Claim, kept bool) {
	if !kept {
		s.dormant = append(s.dormant, c)
		return
	}
	s.kept = append(s.kept, c)
	s.stay = append(s.stay, placeOf(c))
	s.users = append(s.users, "claim "+c.ID)
}

func placeOf(c *claim.Claim) mig.Instance {
	return mig.Instance{Profile: c.MIG.Profile, Place: mig.Place{Start: c.MIG.Start, Size: c.MIG.Size}}
}

// addInstance finds out whether an instance is used. One in the place of a claim
// that is kept is that claim's.
func (n *node) addInstance(ctx context.Context, s *standing, instance nvml.MIGInstance, hidden bool) error {
	if slices.ContainsFunc(s.kept, func(c *claim.Claim) bool { return placeOf(c).Overlaps(instance.Place) }) {
		return nil
	}
	user := ""
	switch {
	case n.ignored[instance.UUID]:
		user = instance.UUID + " of ignored_gpu_ids"
	case instance.UUID != "": // else nothing can be on it
		processes, err := n.nvml.Processes(ctx, instance.UUID)
		if err != nil {
			return fmt.Errorf("list the processes on the MIG instance %s: %w", instance.UUID, err)
		}
		if len(processes) > 0 {
			user = fmt.Sprintf("process %d", processes[0].PID)
		}
	}
	owner := s.claimOn(instance)
	if owner == nil && hidden && instance.UUID != "" {
		user = "a claim that cannot be read"
	}
	if user != "" {
		s.stay = append(s.stay, instance.Instance)
		s.users = append(s.users, user)
		return nil
	}
	s.idle = append(s.idle, idleInstance{instance, owner})
	return nil
}

// claimOn is the dormant claim on an instance; nil if there is none. The driver
// gives an instance the UUID of an earlier one that was in the same place.
func (s *standing) claimOn(instance nvml.MIGInstance) *claim.Claim {
	for _, c := range s.dormant {
		if !c.Making() && c.GPU.UUID == instance.UUID && placeOf(c).Place == instance.Place {
			return c
		}
	}
	return nil
}

// mayHide tells whether a claim whose record cannot be read may be on an
// instance of a GPU.
func mayHide(problems []claim.Problem, uuid string) bool {
	return slices.ContainsFunc(problems, func(p claim.Problem) bool {
		named := func(name string) bool { return strings.HasPrefix(name, uuid) }
		return p.ClaimID != "" && (p.GPUUUID == "" || named(p.GPUUUID) || slices.ContainsFunc(p.MayHold, named))
	})
}

// spared are the idle instances that better stay: a container may still come
// back for them. wanted are slices that Nomad gives to somebody else now.
func (s *standing) spared(wanted []string) []mig.Instance {
	var places []mig.Instance
	for _, i := range s.idle {
		if i.claim != nil && !shares(i.claim, wanted) {
			places = append(places, i.Instance)
		}
	}
	return places
}

func shares(c *claim.Claim, wanted []string) bool {
	return slices.ContainsFunc(c.Slices, func(s string) bool { return slices.Contains(wanted, s) })
}

// room is what else a GPU has room for, for the fingerprint to tell Nomad.
type room struct {
	// bytes is the memory of the largest instance that can still be made.
	bytes uint64
	// kept are the slices of claims that are kept, dormant those of dormant ones.
	kept, dormant map[string]bool
	// unknown is why nothing is known; empty if it is.
	unknown string
}

// room is what is left on a GPU.
func (s *standing) room(sizes []mig.Profile) *room {
	r := &room{bytes: mig.Largest(s.stay, sizes), kept: make(map[string]bool), dormant: make(map[string]bool)}
	for _, c := range s.kept {
		for _, slice := range c.Slices {
			r.kept[slice] = true
		}
	}
	for _, c := range s.dormant {
		for _, slice := range c.Slices {
			r.dormant[slice] = true
		}
	}
	return r
}
