package claim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/tranche-gpu/tranche/claim/region"
)

// Reserve makes a claim on slices of a GPU and returns it with its claim token, which the ledger does not keep.
//
// Nomad does not report that slices were freed: it just reserves them again. So older claims that conflict with the request
// are superseded and removed, unless one is bound to a living container or its container is being started: then the error is
// a *HeldError, nothing has changed, and the call may succeed later.
func (l *Ledger) Reserve(ctx context.Context, req Request) (*Claim, Token, error) {
	made, tokens, err := l.ReserveAll(ctx, []Request{req})
	if err != nil {
		return nil, Token{}, err
	}
	return made[0], tokens[0], nil
}

// ReserveAll is Reserve for claims that belong together, such as those of one task on several GPUs: all are made, in the order
// of the requests, or none, also if the process dies meanwhile. On a full disk, the claims that would be superseded are
// removed first, and then dormant ones, even if the reservation then fails.
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

// newRecord returns a record with an ID that neither the ledger nor the other new records have.
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

// unused reports whether an ID is free: with 32 bits, collisions happen.
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
	// If a directory cannot be read, creating the region will return the error.
	_, regionErr := os.Lstat(l.regionPath(id))
	_, yieldedErr := os.Lstat(l.yieldedPath(id))
	return regionErr != nil && yieldedErr != nil
}

// mostEvicted bounds the dormant claims that are removed for a reservation on a full disk: other programs may use up the space
// that they free.
const mostEvicted = 8

// enterWithRoom is enterAll, but on a full disk it first removes the claims that the new ones supersede, and then those that
// have been dormant longest and those whose container never started.
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

// evict removes dormant claims, and claims whose container never started. It reports whether there was any.
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

// longestDead returns the claim that has been dormant for longest, which a full disk evicts first; nil if there is none.
func (l *Ledger) longestDead(snap *snapshot) *record {
	var oldest *record
	for _, r := range snap.sorted() {
		dead := !l.used(r) && l.state(r) != StateReserved
		if dead && (oldest == nil || r.dormantSince().Before(oldest.dormantSince())) {
			oldest = r
		}
	}
	return oldest
}

// enter writes a new claim: first the region and last the record, which commits the claim. If the process dies in between, the
// next sweep removes the region.
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

// wantsRegion reports whether the claim has a region from the start. A claim that needs no shadow library gets one only for a
// container that has another claim that does; a claim whose MIG instance is being created gets it with the instance.
func (r *record) wantsRegion() bool { return r.Shadowed() && !r.Making() }
