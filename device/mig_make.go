package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/mig"
)

// undoWithin bounds what is done when an instance could not be made. With
// reserveTimeout it is less than claim.MakeWithin, after which others take the
// claim back.
const undoWithin = 20 * time.Second

// instanceError says that the instance that a reservation calls for could not be
// made.
type instanceError struct{ err error }

func (e *instanceError) Error() string { return e.err.Error() }
func (e *instanceError) Unwrap() error { return e.err }

// Retriable says that the same call may succeed later.
func (e *instanceError) Retriable() bool { return true }

// reserve makes an instance that holds the slices, and a claim on it. The claim
// comes first, and says where the instance will be: whoever finds an instance
// without a claim may destroy it.
func (m *demandMode) reserve(ctx context.Context, devices []device) ([]claim.Token, error) {
	g, err := m.oneGPUWithin(devices)
	if err != nil {
		return nil, err
	}
	done, err := m.demand.turn(ctx, g.UUID)
	if err != nil {
		return nil, &instanceError{err}
	}
	defer done()
	m.sweep(ctx)
	s, err := m.look(ctx, g, ids(devices))
	if err != nil {
		return nil, err
	}
	if !s.enabled {
		m.wake()
		return nil, &instanceError{fmt.Errorf("MIG was turned off on the GPU %s; it is turned on again when nobody uses the GPU", g)}
	}
	profile, at, ok := mig.Smallest(s.stay, s.spared(ids(devices)), uint64(len(devices))*g.sliceBytes, g.sizes)
	if !ok {
		m.wake()
		return nil, s.noRoom(g, len(devices))
	}
	claims, tokens, err := m.ledger.ReserveAll(ctx, []claim.Request{demandRequest(g, ids(devices), profile, at)})
	if err != nil {
		return nil, err
	}
	if err := m.makeInstance(ctx, g, s, claims[0], mig.Placed{Profile: profile, Place: at}); err != nil {
		return nil, errors.Join(&instanceError{err}, m.undo(ctx, g, claims[0]))
	}
	return tokens, nil
}

// makeInstance makes a claim's instance where idle ones may be in the way.
func (m *demandMode) makeInstance(ctx context.Context, g *gpu, s *standing, c *claim.Claim, wanted mig.Placed) error {
	for _, instance := range s.idle {
		if !wanted.Overlaps(instance.Place) {
			continue
		}
		instance.claim = nil // superseded
		if err := m.retire(ctx, g, instance); err != nil {
			return fmt.Errorf("no MIG instance was made for claim %s: one is in the way that cannot be destroyed: %w", c.ID, err)
		}
	}
	made, err := m.partitioner.CreateInstance(ctx, g.UUID, wanted.Profile, wanted.Place)
	if err != nil {
		return fmt.Errorf("no MIG instance was made for claim %s: %w; if this goes on, see `nvidia-smi mig -lgi` for who else "+
			"cuts up the GPU", c.ID, err)
	}
	m.logger.Info("MIG instance made", "gpu", g.UUID, "profile", made.Profile, "slot", made.Start, "uuid", made.UUID, "claim", c.ID)
	gpu := claim.GPU{UUID: made.UUID, Index: g.Index, Name: made.Name}
	return m.ledger.CompleteMIG(ctx, c.ID, gpu, made.GPUInstance, made.ComputeInstance)
}

// undo takes back a claim whose instance could not be made, and what is there of
// it. What cannot be undone now, the next look at the GPU finds.
func (m *demandMode) undo(ctx context.Context, g *gpu, c *claim.Claim) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()
	defer m.wake()
	if err := m.ledger.Cancel(bounded, c.ID); err != nil {
		return err
	}
	if err := m.tidy(bounded, g); err != nil {
		m.logger.Warn("a MIG instance that could not be completed may be left; the next look at the GPU tries again",
			"gpu", g.UUID, "claim", c.ID, "error", err)
	}
	return nil
}

// noRoom says why a GPU has no room for so many slices.
func (s *standing) noRoom(g *gpu, count int) error {
	bytes := uint64(count) * g.sliceBytes
	fit := int(mig.Largest(s.stay, g.sizes) / g.sliceBytes)
	users := slices.Sorted(slices.Values(s.users))
	return &instanceError{fmt.Errorf("MIG has no room on the GPU %s for an instance with the memory of %d slices (%s), but for "+
		"%d slices at most, beside what is in use by %s: ask for fewer",
		g, count, memsize.Format(bytes), fit, strings.Join(users, ", "))}
}

// demandRequest is what to ask the ledger for, for an instance that is to be
// made. It is the limit: its task may use all of its memory.
func demandRequest(g *gpu, ids []string, profile mig.Profile, at mig.Place) claim.Request {
	return claim.Request{
		GPU:        claim.GPU{Index: g.Index, Name: g.Name},
		Slices:     slices.Sorted(slices.Values(ids)),
		SliceBytes: g.sliceBytes,
		LimitBytes: profile.Bytes,
		Owner:      claim.OwnerNomad,
		Mode:       claim.ModeMIG,
		Unlimited:  true,
		MIG:        &claim.MIG{GPUUUID: g.UUID, GPUIndex: g.Index, Profile: profile.Name, Start: at.Start, Size: at.Size},
	}
}
