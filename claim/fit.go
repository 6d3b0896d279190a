package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// Candidate is a GPU that a claim may be made on.
type Candidate struct {
	GPU GPU
	// Slices is the number of slices that the GPU has, SliceBytes the memory of one; 0 means the request's.
	Slices     int
	SliceBytes uint64
	// Shares is whether claims on the GPU are governed. Their shares are what their slices are worth.
	Shares bool
	// Enforcement is what holds claims on the GPU to their limits; empty means EnforcementLibrary.
	Enforcement Enforcement
}

// FitRequest is a request for ReserveFit.
type FitRequest struct {
	// Candidates are the GPUs to choose from.
	Candidates []Candidate
	// SliceBytes is the memory of one slice.
	SliceBytes uint64
	// LimitBytes is the limit. The claim gets as many slices as it needs.
	LimitBytes uint64
	Owner      string
	// Workload is recorded with the claim, unless it is zero.
	Workload Workload
	// Starter is the process that starts the container and lives until it is bound; nil if it is unknown.
	Starter *proc.ID
}

func (r FitRequest) check() error {
	switch {
	case len(r.Candidates) == 0:
		return errors.New("the request names no GPU")
	case slices.ContainsFunc(r.Candidates, func(c Candidate) bool { return c.GPU.UUID == "" }):
		return errors.New("the request names a GPU without a UUID")
	case r.SliceBytes == 0:
		return errors.New("the request states no size of a slice")
	case r.LimitBytes == 0:
		return errors.New("the request has no limit")
	}
	return nil
}

// slices returns the number of slices of a size that the limit needs.
func (r FitRequest) slices(sliceBytes uint64) int {
	whole := r.LimitBytes / sliceBytes
	if r.LimitBytes%sliceBytes > 0 {
		whole++
	}
	return int(whole)
}

// ReserveFit makes a claim on the candidate that it fits best: the one that has the fewest free slices left then, and of
// several the one with the lowest index. If it fits on none, dormant claims yield: on the candidate where this takes the fewest
// of their slices, those first that have been dormant for longest. Unlike Reserve it supersedes no claim whose container may be
// on its way: only Nomad knows which of its tasks are to start.
//
// The claim has no token: the caller binds it to a container within BindWithin, and while the request's Starter lives. If no
// candidate has room, the error is a *NoRoomError.
func (l *Ledger) ReserveFit(ctx context.Context, req FitRequest) (*Claim, error) {
	if err := req.check(); err != nil {
		return nil, fmt.Errorf("reserving slices: %w", err)
	}
	var made *Claim
	err := l.write(ctx, func(snap *snapshot) error {
		if _, err := l.sweepClaims(snap); err != nil { // nobody else may be there to do it
			return err
		}
		room, err := l.fit(snap, req)
		if err != nil {
			return err
		}
		yielding := room.disturbed(room.Free)
		var part *Compute
		if room.Shares {
			part = ShareOf(len(room.Free), room.Slices)
		}
		r, _ := l.newRecord(snap, nil, Request{
			GPU: room.GPU, Slices: slices.Sorted(slices.Values(room.Free)), SliceBytes: room.SliceBytes, LimitBytes: req.LimitBytes,
			Owner: req.Owner, Enforcement: room.Enforcement, Compute: part,
		}.claim(), yielding)
		r.Starter = req.Starter
		l.keepYielded(snap, yielding)
		made = r.claim()
		if err := l.enter(snap, r); err != nil {
			return err
		}
		l.finishSuperseding(snap)
		l.keepRoom(snap)
		if err := l.noteWorkload(r.ID, req.Workload); err != nil {
			l.logger.Warn("a claim's workload could not be recorded", "claim", r.ID, "error", err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reserving %s: %w", countSlices(req.slices(req.SliceBytes)), err)
	}
	l.logReserved(made)
	return made, nil
}

// fit chooses the GPU, and the slices on it, which are the Free ones of the returned Room.
func (l *Ledger) fit(snap *snapshot, req FitRequest) (Room, error) {
	var rooms, fitting []Room
	for _, c := range req.Candidates {
		room, err := l.room(snap, c, cmp.Or(c.SliceBytes, req.SliceBytes))
		if err != nil {
			return Room{}, err
		}
		rooms = append(rooms, room)
		if wanted := req.slices(room.SliceBytes); len(room.Free) >= wanted {
			room.Free, room.undisturbed = room.Free[:wanted], room.freeBytes()-uint64(room.Dormant)*room.SliceBytes
			fitting = append(fitting, room)
		}
	}
	if len(fitting) == 0 {
		return Room{}, &NoRoomError{LimitBytes: req.LimitBytes, SliceBytes: req.SliceBytes, Rooms: rooms}
	}
	return slices.MinFunc(fitting, func(x, y Room) int {
		return cmp.Or(cmp.Compare(x.disturbance(), y.disturbance()), cmp.Compare(x.undisturbed, y.undisturbed),
			cmp.Compare(x.GPU.Index, y.GPU.Index))
	}), nil
}

// Room describes the free slices of a GPU.
type Room struct {
	GPU GPU
	// Slices is the number of slices that the GPU has, SliceBytes the memory of one.
	Slices     int
	SliceBytes uint64
	// Free are the names of the free slices: first those that no claim has, then those of dormant claims, of which there are
	// Dormant.
	Free    []string
	Dormant int
	// Shares and Enforcement are the candidate's.
	Shares      bool
	Enforcement Enforcement
	// Mode is the mode of claims on this GPU if it is not shared in slices; otherwise it is empty.
	Mode Mode

	// dormant are the IDs of the dormant claims, by slice. obstacles are those that have to yield whichever slices are taken,
	// because they are in another mode or of another size; what they have counts as free.
	dormant   map[string]string
	obstacles []string
	// undisturbed is the memory that no claim has.
	undisturbed uint64
}

func (r Room) freeBytes() uint64 { return uint64(len(r.Free)) * r.SliceBytes }

// disturbance orders rooms by how much has to yield for their free slices.
func (r Room) disturbance() int {
	taken := len(r.obstacles)
	for _, name := range r.Free {
		if r.dormant[name] != "" {
			taken++
		}
	}
	return taken
}

// room returns the free slices of a GPU. Slices of another size are an error, since their names do not tell which memory they
// are. A GPU with claims in another mode has no slices.
func (l *Ledger) room(snap *snapshot, c Candidate, sliceBytes uint64) (Room, error) {
	taken, whole := snap.mayBeTaken(c.GPU.UUID)
	room := Room{
		GPU: c.GPU, Slices: c.Slices, SliceBytes: sliceBytes, Shares: c.Shares, Enforcement: c.Enforcement, dormant: map[string]string{},
	}
	var dormant []*record
	onGPU := func(r *record) bool { return r.PhysicalGPU() == c.GPU.UUID || r.GPU.UUID == c.GPU.UUID }
	for _, r := range snap.matching(onGPU) {
		comparable := r.Mode.IsZero() && r.SliceSize() == sliceBytes
		switch yields := l.yields(r); {
		case yields && comparable:
			dormant = append(dormant, r)
			continue
		case yields:
			room.obstacles = append(room.obstacles, r.ID)
			continue
		case !r.Mode.IsZero():
			room.Mode = r.Mode
		case !comparable:
			return Room{}, &SliceSizeError{Claim: r.claim(), SliceBytes: sliceBytes}
		}
		for _, name := range r.Slices {
			taken[name] = true
		}
	}
	if !whole && room.Mode == "" {
		room.addFree(taken, dormant)
	}
	return room, nil
}

// addFree adds the slices that are free: those of dormant claims at the end.
func (r *Room) addFree(taken map[string]bool, dormant []*record) {
	slices.SortStableFunc(dormant, func(x, y *record) int { return x.dormantSince().Compare(y.dormantSince()) })
	var last []string
	for _, d := range dormant {
		for _, name := range d.Slices {
			if _, number, ok := ParseSliceName(name); ok && number < r.Slices && !taken[name] && r.dormant[name] == "" {
				r.dormant[name] = d.ID
				last = append(last, name)
			}
		}
	}
	for number := range r.Slices {
		if name := SliceName(r.GPU.UUID, number); !taken[name] && r.dormant[name] == "" {
			r.Free = append(r.Free, name)
		}
	}
	r.Free, r.Dormant = append(r.Free, last...), len(last)
}

// mayBeTaken returns the slices that claims with unreadable records may have, and whether one may have the whole GPU.
func (snap *snapshot) mayBeTaken(gpuUUID string) (taken map[string]bool, whole bool) {
	taken = map[string]bool{}
	for _, p := range snap.problems {
		for _, name := range p.MayHold {
			taken[name] = true
		}
	}
	return taken, taken[gpuUUID]
}
