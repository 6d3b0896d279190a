package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A dormant claim yields: a container outside Nomad that fits nowhere else gets its slices. Its record moves to yieldedDir,
// which is not part of the ledger, so that its slices count as any others. If its task is restarted in place, Reclaim moves the
// record back, provided that its slices are free by then.

// yieldedDir is the directory in the state directory with the records of claims that have yielded.
const yieldedDir = "yielded"

// yields reports whether a claim yields to others. MIG instances do not: their GPU has no slices for containers outside Nomad.
func (l *Ledger) yields(r *record) bool {
	return r.comesBack() && r.MIG == nil && l.state(r) == StateDormant && !l.lingers(r)
}

// keepYielded writes the records of claims that are about to be superseded, to be moved back. If that is not possible, they
// yield all the same, and a restart in place gets an error.
func (l *Ledger) keepYielded(snap *snapshot, ids []string) {
	for _, id := range ids {
		r := snap.records[id]
		text, err := encodeRecord(r)
		if err == nil {
			err = os.MkdirAll(l.yielded, 0o700)
		}
		if err == nil {
			err = os.WriteFile(l.yieldedPath(id), text, 0o600)
		}
		if err != nil {
			l.logger.Warn("a dormant claim yields for good: its record could not be kept", "claim", id, "error", err)
			_ = removeFile(l.yieldedPath(id))
			continue
		}
		l.logger.Info("dormant claim yields", "claim", id, "slices", ListNames(r.Slices), "workload", l.workloadText(id))
	}
}

// Reclaim is FromEnv for a container that is about to be started: a claim that has yielded gets its slices back. If others have
// them, the error is a *YieldedError. The workload is recorded with the claims, as by NoteWorkload, unless it is zero.
func (l *Ledger) Reclaim(ctx context.Context, env map[string]string, w Workload) ([]*Claim, error) {
	if !HasTokens(env) {
		return nil, nil
	}
	var found []*Claim
	err := l.write(ctx, func(snap *snapshot) error {
		for _, name := range tokenVariables(env) {
			t, err := checkEnv(name, env[name])
			if err != nil {
				return err
			}
			if err := l.moveBack(snap, t); err != nil {
				return fmt.Errorf("environment variable %s: %w", name, err)
			}
		}
		claims, err := snap.fromEnv(env)
		if err != nil {
			return err
		}
		found = claims
		for _, c := range claims {
			if err := l.noteWorkload(c.ID, w); err != nil {
				l.logger.Warn("a claim's workload could not be recorded", "claim", c.ID, "error", err)
			}
			if err := l.refreshStart(snap.records[c.ID]); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// moveBack gives the claim of a token its slices back if it has yielded.
func (l *Ledger) moveBack(snap *snapshot, t Token) error {
	if _, ok := snap.records[t.claimID()]; ok {
		return nil
	}
	r, err := l.readYielded(t.claimID())
	if err != nil {
		return nil //nolint:nilerr // the ledger's own answer says what may be the matter
	}
	if !r.hasToken(t) {
		return nil
	}
	if _, err := l.sweepClaims(snap); err != nil { // nobody else may be there to do it
		return err
	}
	r.Supersedes = nil
	for _, other := range snap.matching(func(o *record) bool { return len(r.conflict(&o.Claim)) > 0 }) {
		if !l.yields(other) {
			return &YieldedError{Claim: r.claim(), Slices: r.conflict(&other.Claim), By: other.claim()}
		}
		r.Supersedes = append(r.Supersedes, other.ID)
	}
	if err := l.heldByBroken(snap, &r.Claim); err != nil {
		return err
	}
	if err := l.enterWithRoom(snap, []*record{r}); err != nil {
		return err
	}
	l.finishSuperseding(snap)
	l.keepRoom(snap)
	_ = removeFile(l.yieldedPath(r.ID)) // if it stays, the next sweep removes it
	l.logger.Info("yielded claim has its slices back", "claim", r.ID, "slices", ListNames(r.Slices))
	return nil
}

func (l *Ledger) readYielded(id string) (*record, error) {
	text, _, err := readRegular(l.yieldedPath(id))
	if err != nil {
		return nil, err
	}
	return decodeRecord(id, text)
}

// sweepYielded removes the records of claims that have expired, or that are in the ledger because a process died while it moved
// them.
func (l *Ledger) sweepYielded(snap *snapshot) error {
	entries, err := os.ReadDir(l.yielded)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		id, ok := idOfFile(e.Name())
		if !ok {
			continue
		}
		r, err := l.readYielded(id)
		_, back := snap.records[id]
		if err != nil || back || l.now().Sub(r.dormantSince()) > DormantFor {
			errs = append(errs, removeFile(l.yieldedPath(id)))
		}
	}
	return errors.Join(errs...)
}

func (l *Ledger) yieldedPath(id string) string { return filepath.Join(l.yielded, id+".json") }

// GiveUp makes the claims of an environment's tokens dormant whose container did not start. A claim that a living container
// has, or that is gone, does not change.
func (l *Ledger) GiveUp(ctx context.Context, env map[string]string) error {
	return l.read(ctx, func(snap *snapshot) error {
		var errs []error
		for _, name := range tokenVariables(env) {
			t, err := checkEnv(name, env[name])
			if err != nil {
				continue
			}
			if r, ok := snap.records[t.claimID()]; ok && r.hasToken(t) {
				errs = append(errs, l.giveUp(snap, r))
			}
		}
		return errors.Join(errs...)
	})
}

// GiveUpClaim is GiveUp for a claim of Nomad's that is known by its ID.
func (l *Ledger) GiveUpClaim(ctx context.Context, id string) error {
	return l.read(ctx, func(snap *snapshot) error {
		if r, ok := snap.records[id]; ok {
			return l.giveUp(snap, r)
		}
		return nil
	})
}

func (l *Ledger) giveUp(snap *snapshot, r *record) error {
	if !r.comesBack() || r.held() || r.Making() || !r.Released.IsZero() && l.state(r) == StateDormant {
		return nil
	}
	return l.release(snap, r)
}

// YieldedError is returned if a claim's slices were given to others while its task was stopped.
type YieldedError struct {
	// Claim is the claim that has yielded, Slices those of the other claim's slices that it had.
	Claim  *Claim
	Slices []string
	// By is the claim that has them now.
	By *Claim
}

func (e *YieldedError) Error() string {
	return fmt.Sprintf("slices %s of claim %s were given to claim %s (%s) while the task was stopped; stop the job and run it "+
		"again, so that Nomad places it anew", ListNames(e.Slices), e.Claim.ID, e.By.ID, e.holder())
}

func (e *YieldedError) holder() string {
	if e.By.Container == nil {
		return "whose container is being started"
	}
	return describeHolder(e.By.Container)
}

// disturbed returns the claims that have to yield for some of a room's slices.
func (r Room) disturbed(names []string) []string {
	ids := slices.Clone(r.obstacles)
	for _, name := range names {
		if id := r.dormant[name]; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
