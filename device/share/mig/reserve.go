package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/size"
)

// undoTimeout bounds the cleanup after an instance could not be created. Together with the time limit of a reservation it
// is less than claim.MakeWithin, after which others take the claim back.
const undoTimeout = 20 * time.Second

// instanceError says that the instance for a reservation could not be created.
type instanceError struct{ err error }

func (e *instanceError) Error() string { return e.err.Error() }
func (e *instanceError) Unwrap() error { return e.err }

// Retriable reports that the same reservation may succeed later.
func (e *instanceError) Retriable() bool { return true }

// reserve creates an instance that holds the slices, and a claim on it. The claim comes first and says where the instance
// will be, because an instance without a claim may be destroyed at any time.
func (m *OnDemand) reserve(ctx context.Context, devices []share.Device) (*share.Reservation, error) {
	g, err := share.OneGPU(devices, m.MaxSlices)
	if err != nil {
		return nil, err
	}
	ids := share.IDs(devices)
	unlock, err := m.lock(ctx, g.UUID)
	if err != nil {
		return nil, &instanceError{err}
	}
	defer unlock()
	m.Ledger.ReleaseEnded(ctx)
	s, err := m.readState(ctx, g, ids)
	if err != nil {
		return nil, err
	}
	if !s.enabled {
		m.Wake()
		return nil, &instanceError{fmt.Errorf("MIG was turned off on the GPU %s; it is turned on again when nobody uses the GPU", g)}
	}
	profile, at, ok := mig.Smallest(s.occupied, s.spare(ids), uint64(len(devices))*g.SliceBytes, g.Sizes)
	if !ok {
		m.Wake()
		return nil, s.noRoom(g, len(devices))
	}
	claims, tokens, err := m.Ledger.ReserveAll(ctx, []claim.Request{request(g, ids, profile, at)})
	if err != nil {
		return nil, err
	}
	if err := m.create(ctx, g, s, claims[0], mig.Placed{Profile: profile, Place: at}); err != nil {
		return nil, errors.Join(&instanceError{err}, m.undo(ctx, g, claims[0]))
	}
	reserved, err := m.Ledger.Lookup(ctx, tokens[0])
	if err != nil {
		return nil, err
	}
	return &share.Reservation{Tokens: tokens, Visible: []string{reserved.GPU.UUID}}, nil
}

// request returns the claim to make on an instance that is to be created. The instance is the limit: its task may use all
// of its memory.
func request(g *share.GPU, ids []string, profile mig.Profile, at mig.Place) claim.Request {
	return claim.Request{
		GPU:        claim.GPU{Index: g.Index, Name: g.Name},
		Slices:     slices.Sorted(slices.Values(ids)),
		SliceBytes: g.SliceBytes,
		LimitBytes: profile.Bytes,
		Owner:      claim.OwnerNomad,
		Mode:       claim.ModeMIG,
		Unlimited:  true,
		MIG:        &claim.MIG{GPUUUID: g.UUID, GPUIndex: g.Index, Profile: profile.Name, Start: at.Start, Size: at.Size},
	}
}

// create creates a claim's instance, after destroying idle ones that are in the way.
func (m *OnDemand) create(ctx context.Context, g *share.GPU, s *state, c *claim.Claim, wanted mig.Placed) error {
	for _, instance := range s.idle {
		if !wanted.Overlaps(instance.Place) {
			continue
		}
		instance.claim = nil // superseded
		if err := m.destroy(ctx, g, instance); err != nil {
			return fmt.Errorf("create a MIG instance for claim %s: destroy one that is in the way: %w", c.ID, err)
		}
	}
	created, err := m.Driver.Partitioner.CreateInstance(ctx, g.UUID, wanted.Profile, wanted.Place)
	if err != nil {
		return fmt.Errorf("create a MIG instance for claim %s: %w; if this persists, `nvidia-smi mig -lgi` shows instances of "+
			"other programs", c.ID, err)
	}
	m.Logger.Info("MIG instance created", "gpu", g.UUID, "profile", created.Profile, "slot", created.Start, "uuid", created.UUID,
		"claim", c.ID)
	gpu := claim.GPU{UUID: created.UUID, Index: g.Index, Name: created.Name}
	return m.Ledger.CompleteMIG(ctx, c.ID, gpu, created.GPUInstance, created.ComputeInstance)
}

// undo takes back a claim whose instance could not be created, and what exists of the instance. What cannot be undone now
// is cleaned up at the next fingerprint.
func (m *OnDemand) undo(ctx context.Context, g *share.GPU, c *claim.Claim) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	defer m.Wake()
	if err := m.Ledger.Cancel(bounded, c.ID); err != nil {
		return err
	}
	if err := m.collectGarbage(bounded, g); err != nil {
		m.Logger.Warn("an incomplete MIG instance may be left; the next fingerprint destroys it",
			"gpu", g.UUID, "claim", c.ID, "error", err)
	}
	return nil
}

// noRoom returns the error for a GPU that has no room for so many slices.
func (s *state) noRoom(g *share.GPU, count int) error {
	bytes := uint64(count) * g.SliceBytes
	fit := int(mig.Largest(s.occupied, g.Sizes) / g.SliceBytes)
	users := slices.Sorted(slices.Values(s.users))
	return &instanceError{fmt.Errorf("MIG has no room on the GPU %s for an instance with the memory of %d slices (%s), but for "+
		"%d slices at most, beside what is in use by %s: ask for fewer",
		g, count, size.Format(bytes), fit, strings.Join(users, ", "))}
}
