package claim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim/region"
)

// Reserve makes a claim on slices of a GPU and returns it with its claim token, which is kept nowhere else.
//
// Nomad never says that slices were freed; that it reserves them anew says so. Older claims that conflict with the
// request are superseded and gone, unless one is bound to a container that lives, or made for one that is being started:
// then the error is a *HeldError, nothing has changed, and another try may succeed later.
func (l *Ledger) Reserve(ctx context.Context, req Request) (*Claim, Token, error) {
	made, tokens, err := l.ReserveAll(ctx, []Request{req})
	if err != nil {
		return nil, Token{}, err
	}
	return made[0], tokens[0], nil
}

// ReserveAll is Reserve for claims that belong together, such as those of one task on several GPUs: all are made, in the
// order of the requests, or none is and nothing has changed. That is also so where the process dies in its midst. On a disk
// that is full, the claims that would be superseded go first, and then dormant ones, so that these may be gone all the same.
func (l *Ledger) ReserveAll(ctx context.Context, reqs []Request) ([]*Claim, []Token, error) {
	if err := checkTogether(reqs); err != nil {
		return nil, nil, fmt.Errorf("reserving slices: %w", err)
	}
	var made []*Claim
	var tokens []Token
	count := 0
	for _, req := range reqs {
		count += len(req.Slices)
	}
	err := l.write(ctx, func(snap *snapshot) error {
		records := make([]*record, 0, len(reqs))
		for _, req := range reqs {
			asked := req.claim()
			older, err := l.supersededBy(snap, &asked)
			if err != nil {
				return err
			}
			r, token := l.newRecord(snap, records, asked, older)
			records, tokens = append(records, r), append(tokens, token)
		}
		if err := l.enterWithRoom(snap, records); err != nil {
			return err
		}
		l.finishSuperseding(snap)
		l.keepRoom(snap)
		for _, r := range records {
			made = append(made, r.claim())
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reserving %s of GPU %s: %w", countSlices(count), gpus(reqs), err)
	}
	for _, c := range made {
		l.logReserved(c)
	}
	return made, tokens, nil
}

func (l *Ledger) logReserved(c *Claim) {
	l.logger.Info("slices reserved", "claim", c.ID, "mode", string(c.Mode), "gpu", c.PhysicalGPU(), "slices", c.Slices,
		"limit_bytes", c.LimitBytes, "owner", c.Owner)
}

// newRecord makes the record of a claim, under an ID that neither the ledger nor the records beside it have.
func (l *Ledger) newRecord(snap *snapshot, beside []*record, asked Claim, older []string) (*record, Token) {
	token := newToken()
	for !l.unused(snap, token.claimID()) || slices.ContainsFunc(beside, func(r *record) bool { return r.ID == token.claimID() }) {
		token = newToken()
	}
	sum := token.hash()
	asked.ID, asked.Created = token.claimID(), l.now()
	return &record{
		Format:      recordFormat,
		Claim:       asked,
		TokenSHA256: hex.EncodeToString(sum[:]),
		Supersedes:  older,
	}, token
}

// unused tells whether an ID means nothing yet: 32 bits are few enough to meet one again.
func (l *Ledger) unused(snap *snapshot, id string) bool {
	for _, r := range snap.records {
		if r.ID == id || slices.Contains(r.Supersedes, id) {
			return false
		}
	}
	for _, p := range snap.problems {
		if p.ClaimID == id {
			return false
		}
	}
	// Where the directory can't be looked at, no other ID fares better, and making the region says what is wrong.
	_, err := os.Lstat(l.regionPath(id))
	return err != nil
}

// mostEvicted is how many dormant claims are given up at most for a reservation on a disk that is full: others may use up
// whatever room they leave.
const mostEvicted = 8

// enterWithRoom is enterAll that makes room on a disk that is full: claims that the new ones supersede go first, and then
// those that have been dormant longest, which yield to anybody who asks, and those whose container never came.
func (l *Ledger) enterWithRoom(snap *snapshot, records []*record) error {
	err := l.enterAll(snap, records)
	for evicted := 0; errors.As(err, new(fullError)) && evicted <= mostEvicted; evicted++ {
		if !l.evict(snap, records) {
			break
		}
		err = l.enterAll(snap, records)
	}
	return err
}

// evict removes claims of containers that are gone, or never came, for new ones. It reports whether there was any.
func (l *Ledger) evict(snap *snapshot, records []*record) bool {
	var dead []*record
	for _, r := range records {
		for _, id := range r.Supersedes {
			if older, ok := snap.records[id]; ok {
				dead = append(dead, older)
			}
		}
	}
	if oldest := l.longestDead(snap); len(dead) == 0 && oldest != nil {
		dead = append(dead, oldest)
	}
	for _, r := range dead {
		l.logger.Warn("the disk under the ledger is full: removing a claim without a container", "claim", r.ID,
			"slices", ListNames(r.Slices))
		if err := l.remove(snap, r); err != nil {
			l.logger.Warn("a claim without a container could not be removed", "claim", r.ID, "error", err)
			return false
		}
	}
	return len(dead) > 0
}

// unboundFor is how long a claim without a container is not given up for others: an image may have to be pulled first.
const unboundFor = 10 * time.Minute

// longestDead gives the claim whose container has been gone for longest, or has not come for longest; nil if there is none.
func (l *Ledger) longestDead(snap *snapshot) *record {
	var oldest *record
	for _, r := range snap.sorted() {
		dead := !l.used(r) && (r.Container != nil || l.now().Sub(l.Refreshed(&r.Claim)) > unboundFor)
		if dead && (oldest == nil || r.dormantSince().Before(oldest.dormantSince())) {
			oldest = r
		}
	}
	return oldest
}

// enter writes a new claim. The region comes first and the record, which makes the claim, last: whoever dies in between
// leaves a region that belongs to nobody, and the next sweep removes it.
func (l *Ledger) enter(snap *snapshot, r *record) error {
	if r.wantsRegion() {
		if err := region.Create(l.regionPath(r.ID), r.header()); err != nil {
			return err
		}
	}
	if err := l.writeNew(snap, r); err != nil {
		l.removeRegion(r.ID)
		return err
	}
	snap.records[r.ID] = r
	return nil
}

// wantsRegion tells whether the claim has a region from the start. One without a limit gets it only with a container
// that has another claim with one; one whose instance is being made gets it with that.
func (r *record) wantsRegion() bool { return r.Limited() && !r.Making() }
