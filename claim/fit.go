package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Candidate is a GPU that a claim may be made on.
type Candidate struct {
	GPU GPU
	// Slices is how many the GPU has.
	Slices int
}

// FitRequest is what ReserveFit is asked for.
type FitRequest struct {
	// Candidates are the GPUs to choose from.
	Candidates []Candidate
	// SliceBytes is the memory of one slice.
	SliceBytes uint64
	// LimitBytes is what the container may have. It takes as many slices as hold that much.
	LimitBytes uint64
	Owner      string
	// Starter is the process that starts the container and lives until it is bound; nil where that is not known.
	Starter *Process
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

// slices is how many slices hold the limit.
func (r FitRequest) slices() int {
	whole := r.LimitBytes / r.SliceBytes
	if r.LimitBytes%r.SliceBytes > 0 {
		whole++
	}
	return int(whole)
}

// ReserveFit makes a claim on whichever of the candidates it fits best: the one that has the fewest free slices left
// then, and of several the one with the lowest index. Unlike Reserve it supersedes nothing. Nomad may still restart a
// task whose container is gone, so a slice is free only if no claim in the ledger has it, dormant ones included.
//
// The claim has no token: it is for the caller alone, who binds it to a container within BindWithin, and while the
// request's Starter lives. If no candidate has room, the error is a *NoRoomError.
func (l *Ledger) ReserveFit(ctx context.Context, req FitRequest) (*Claim, error) {
	if err := req.check(); err != nil {
		return nil, fmt.Errorf("reserving slices: %w", err)
	}
	var made *Claim
	err := l.write(ctx, func(b *book) error {
		if _, err := l.sweepClaims(b); err != nil { // nobody else may be there to do it
			return err
		}
		gpu, names, err := b.fit(req)
		if err != nil {
			return err
		}
		r, _ := l.newRecord(b, Request{
			GPU: gpu, Slices: names, SliceBytes: req.SliceBytes, LimitBytes: req.LimitBytes, Owner: req.Owner,
		}, nil)
		r.Starter = req.Starter
		made = r.claim()
		return l.enter(b, r)
	})
	if err != nil {
		return nil, fmt.Errorf("reserving %d slices: %w", req.slices(), err)
	}
	l.logger.Info("slices reserved", "claim", made.ID, "gpu", made.GPU.UUID, "slices", made.Slices,
		"limit_bytes", made.LimitBytes, "owner", made.Owner)
	return made, nil
}

// fit chooses the GPU and the slices on it.
func (b *book) fit(req FitRequest) (GPU, []string, error) {
	rooms := make([]Room, 0, len(req.Candidates))
	for _, c := range req.Candidates {
		room, err := b.room(c, req.SliceBytes)
		if err != nil {
			return GPU{}, nil, err
		}
		rooms = append(rooms, room)
	}
	slices.SortStableFunc(rooms, func(x, y Room) int {
		return cmp.Or(cmp.Compare(len(x.Free), len(y.Free)), cmp.Compare(x.GPU.Index, y.GPU.Index))
	})
	wanted := req.slices()
	for _, room := range rooms {
		if len(room.Free) >= wanted {
			return room.GPU, room.Free[:wanted], nil
		}
	}
	return GPU{}, nil, &NoRoomError{LimitBytes: req.LimitBytes, SliceBytes: req.SliceBytes, Rooms: rooms}
}

// Room is what a GPU has free.
type Room struct {
	GPU GPU
	// Slices is how many the GPU has, Free names those that no claim has.
	Slices int
	Free   []string
	// Dormant are the claims on this GPU whose container is gone, but which keep their slices.
	Dormant []string
}

// room looks at what is free on a GPU. Slices of another size than the request's are an error: by their names nobody
// could tell which memory is whose.
func (b *book) room(c Candidate, sliceBytes uint64) (Room, error) {
	taken := map[string]bool{}
	for _, p := range b.problems {
		for _, name := range p.MayHold {
			taken[name] = true
		}
	}
	room := Room{GPU: c.GPU, Slices: c.Slices}
	for _, r := range b.sorted() {
		if r.GPU.UUID != c.GPU.UUID {
			continue
		}
		if size := r.SliceSize(); size != sliceBytes {
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
		if name := SliceName(c.GPU.UUID, number); !taken[name] {
			room.Free = append(room.Free, name)
		}
	}
	return room, nil
}
