package claim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"tranche.dev/tranche/claim/region"
)

// Request is what Reserve is asked for.
type Request struct {
	GPU    GPU
	Slices []string
	// SliceBytes is the memory of one slice; 0 where it is the limit's part of each.
	SliceBytes uint64
	LimitBytes uint64
	Owner      string
}

func (r Request) check() error {
	switch {
	case r.GPU.UUID == "":
		return errors.New("the request names no GPU")
	case len(r.Slices) == 0:
		return errors.New("the request names no slices")
	case slices.Contains(r.Slices, ""):
		return errors.New("the request names a slice without a name")
	case len(slices.Compact(slices.Sorted(slices.Values(r.Slices)))) != len(r.Slices):
		return fmt.Errorf("the request names a slice twice: %q", r.Slices)
	case r.LimitBytes == 0:
		return errors.New("the request has no limit")
	}
	return nil
}

// Reserve makes a claim on slices of a GPU and returns it with its claim token, which is kept nowhere else.
//
// Nomad never says that slices were freed; that it reserves them anew says so. Older claims that share a slice with the
// request are superseded and gone, unless one is bound to a container that lives, or made for one that is being started: then the error is a *HeldError,
// nothing has changed, and another try may succeed later.
func (l *Ledger) Reserve(ctx context.Context, req Request) (*Claim, Token, error) {
	if err := req.check(); err != nil {
		return nil, Token{}, fmt.Errorf("reserving slices: %w", err)
	}
	var made *Claim
	var token Token
	err := l.write(ctx, func(b *book) error {
		older, err := l.supersededBy(b, req)
		if err != nil {
			return err
		}
		var r *record
		r, token = l.newRecord(b, req, older)
		if err := l.enter(b, r); err != nil {
			return err
		}
		l.finishSuperseding(b)
		made = r.claim()
		return nil
	})
	if err != nil {
		return nil, Token{}, fmt.Errorf("reserving %d slices of GPU %s: %w", len(req.Slices), req.GPU.UUID, err)
	}
	l.logger.Info("slices reserved", "claim", made.ID, "gpu", made.GPU.UUID, "slices", made.Slices,
		"limit_bytes", made.LimitBytes, "owner", made.Owner)
	return made, token, nil
}

// supersededBy gives the claims that would have to go, or says who holds one of them.
func (l *Ledger) supersededBy(b *book, req Request) ([]string, error) {
	var older []string
	for _, r := range b.sorted() {
		shared := req.sharedWith(r)
		if len(shared) == 0 {
			continue
		}
		if l.used(r) {
			return nil, &HeldError{Claim: r.claim(), Slices: shared}
		}
		older = append(older, r.ID)
	}
	return older, l.heldByBroken(b, req)
}

// heldByBroken looks at the records that cannot be read. Who they were bound to is lost, but their regions still tell
// whether a process uses them.
func (l *Ledger) heldByBroken(b *book, req Request) error {
	for _, p := range b.problems {
		shared := intersect(p.MayHold, req.Slices)
		if len(shared) == 0 {
			continue
		}
		if inUse, err := region.InUse(l.regionPath(p.ClaimID)); err == nil && inUse {
			return &HeldError{Claim: &Claim{ID: p.ClaimID, GPU: req.GPU, Slices: p.MayHold}, Slices: shared}
		}
	}
	return nil
}

// sharedWith gives the slices of an older claim that the request is about. Slices of another size have other numbers for
// the same memory.
func (r Request) sharedWith(older *record) []string {
	if r.SliceBytes == 0 || older.SliceBytes == 0 || r.SliceBytes == older.SliceBytes {
		return intersect(older.Slices, r.Slices)
	}
	for _, name := range r.Slices {
		if uuid, number, ok := ParseSliceName(name); ok && older.Covers(uuid, number, r.SliceBytes) {
			return slices.Clone(older.Slices)
		}
	}
	return nil
}

func intersect(x, y []string) []string {
	var both []string
	for _, s := range x {
		if slices.Contains(y, s) {
			both = append(both, s)
		}
	}
	return both
}

func (l *Ledger) newRecord(b *book, req Request, older []string) (*record, Token) {
	token := newToken()
	for !l.unused(b, token.claimID()) {
		token = newToken()
	}
	sum := token.hash()
	return &record{
		Format: recordFormat,
		Claim: Claim{
			ID:         token.claimID(),
			GPU:        req.GPU,
			Slices:     slices.Clone(req.Slices),
			SliceBytes: req.SliceBytes,
			LimitBytes: req.LimitBytes,
			Owner:      req.Owner,
			Created:    l.now(),
		},
		TokenSHA256: hex.EncodeToString(sum[:]),
		Supersedes:  older,
	}, token
}

// unused tells whether an ID means nothing yet: 32 bits are few enough to meet one again.
func (l *Ledger) unused(b *book, id string) bool {
	for _, r := range b.records {
		if r.ID == id || slices.Contains(r.Supersedes, id) {
			return false
		}
	}
	for _, p := range b.problems {
		if p.ClaimID == id {
			return false
		}
	}
	// Where the directory can't be looked at, no other ID fares better, and making the region says what is wrong.
	_, err := os.Lstat(l.regionPath(id))
	return err != nil
}

// enter writes a new claim. The region comes first and the record, which makes the claim, last: whoever dies in between
// leaves a region that belongs to nobody, and the next sweep removes it.
func (l *Ledger) enter(b *book, r *record) error {
	if err := region.Create(l.regionPath(r.ID), r.header()); err != nil {
		return err
	}
	if err := writeRecord(l.claims, r); err != nil {
		l.removeRegion(r.ID)
		return err
	}
	b.records[r.ID] = r
	return nil
}
