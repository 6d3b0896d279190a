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
// several the one with the lowest index. Unlike Reserve it supersedes nothing: Nomad may still restart a task whose container
// is gone, so a slice is free only if no claim has it, dormant ones included.
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
		room, err := snap.fit(req)
		if err != nil {
			return err
		}
		var part *Compute
		if room.Shares {
			part = ShareOf(len(room.Free), room.Slices)
		}
		r, _ := l.newRecord(snap, nil, Request{
			GPU: room.GPU, Slices: room.Free, SliceBytes: room.SliceBytes, LimitBytes: req.LimitBytes, Owner: req.Owner,
			Compute: part,
		}.claim(), nil)
		r.Starter = req.Starter
		made = r.claim()
		if err := l.enter(snap, r); err != nil {
			return err
		}
		l.keepRoom(snap)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reserving %s: %w", countSlices(req.slices(req.SliceBytes)), err)
	}
	l.logReserved(made)
	return made, nil
}

// fit chooses the GPU, and the slices on it, which are the Free ones of the returned Room.
func (snap *snapshot) fit(req FitRequest) (Room, error) {
	rooms := make([]Room, 0, len(req.Candidates))
	for _, c := range req.Candidates {
		room, err := snap.room(c, cmp.Or(c.SliceBytes, req.SliceBytes))
		if err != nil {
			return Room{}, err
		}
		rooms = append(rooms, room)
	}
	slices.SortStableFunc(rooms, func(x, y Room) int {
		return cmp.Or(cmp.Compare(x.freeBytes(), y.freeBytes()), cmp.Compare(x.GPU.Index, y.GPU.Index))
	})
	for _, room := range rooms {
		if wanted := req.slices(room.SliceBytes); len(room.Free) >= wanted {
			room.Free = room.Free[:wanted]
			return room, nil
		}
	}
	return Room{}, &NoRoomError{LimitBytes: req.LimitBytes, SliceBytes: req.SliceBytes, Rooms: rooms}
}

// Room describes the free slices of a GPU.
type Room struct {
	GPU GPU
	// Slices is the number of slices that the GPU has, SliceBytes the memory of one, Free the names of the free ones.
	Slices     int
	SliceBytes uint64
	Free       []string
	// Shares is the candidate's.
	Shares bool
	// Dormant are the dormant claims on this GPU, which keep their slices.
	Dormant []string
	// Mode is the mode of claims on this GPU if it is not shared in slices; otherwise it is empty.
	Mode Mode
}

func (r Room) freeBytes() uint64 { return uint64(len(r.Free)) * r.SliceBytes }

// room returns the free slices of a GPU. Slices of another size are an error, since their names do not tell which memory they
// are. A GPU with claims in another mode has no slices.
func (snap *snapshot) room(c Candidate, sliceBytes uint64) (Room, error) {
	taken, whole := snap.mayBeTaken(c.GPU.UUID)
	room := Room{GPU: c.GPU, Slices: c.Slices, SliceBytes: sliceBytes, Shares: c.Shares}
	for _, r := range snap.sorted() {
		if r.PhysicalGPU() != c.GPU.UUID && r.GPU.UUID != c.GPU.UUID {
			continue
		}
		if !r.Mode.IsZero() {
			room.Mode = r.Mode
		} else if size := r.SliceSize(); size != sliceBytes {
			return Room{}, &SliceSizeError{Claim: r.claim(), SliceBytes: sliceBytes}
		}
		for _, name := range r.Slices {
			taken[name] = true
		}
		if !r.Released.IsZero() {
			room.Dormant = append(room.Dormant, r.ID)
		}
	}
	for number := range c.Slices {
		if name := SliceName(c.GPU.UUID, number); !taken[name] && !whole && room.Mode == "" {
			room.Free = append(room.Free, name)
		}
	}
	return room, nil
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
