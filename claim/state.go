package claim

import (
	"fmt"
	"os"
	"time"
)

// State is what keeps a claim's slices from others. All programs of a node count by it.
type State string

// The states.
const (
	// StateReserved is that of a claim whose container is being started or is still to come.
	StateReserved State = "reserved"
	// StateRunning is that of a claim whose container lives.
	StateRunning State = "running"
	// StateDormant is that of a claim whose container has ended or did not start. A restart in place may bind it again; until
	// then its slices are free for everybody.
	StateDormant State = "dormant"
	// StateEnded is that of a claim made outside Nomad that no container comes back for: the next sweep removes it.
	StateEnded State = "ended"
)

// StartTimeout is how long a claim without a container stays reserved after its reservation, or after whoever starts the
// container last refreshed it. That happens every minute, while an image is pulled, for example.
const StartTimeout = 10 * time.Minute

// State returns the state of a claim at a time, usually now. It takes no lock.
func (l *Ledger) State(c *Claim, now time.Time) State {
	switch {
	case c.Container != nil && Alive(*c.Container):
		return StateRunning
	case !c.comesBack() && c.Starting(now):
		return StateReserved
	case !c.comesBack():
		return StateEnded
	case l.awaited(c, now):
		return StateReserved
	}
	return StateDormant
}

// releaseTakes is how long after the time of a release the record of an earlier version may have been written, which does not set
// the file's time back to that of the release.
const releaseTakes = time.Second

// awaited reports whether a container of a claim of Nomad's may be on its way. A release sets the time of the last refresh to
// that of the release, so that a later one is of a restart in place, whose start refreshes the claim.
func (l *Ledger) awaited(c *Claim, now time.Time) bool {
	refreshed := l.Refreshed(c)
	switch {
	case !c.Released.IsZero():
		return refreshed.After(c.Released.Add(releaseTakes)) && now.Sub(refreshed) <= BindWithin
	case c.Container == nil:
		return now.Sub(refreshed) < StartTimeout
	}
	return false
}

// refreshStart records that the container of a claim is being started now: after a release, as awaited has it.
func (l *Ledger) refreshStart(r *record) error {
	at := l.now()
	if after := r.Released.Add(releaseTakes + time.Millisecond); !r.Released.IsZero() && at.Before(after) {
		at = after
	}
	return l.Refresh(r.ID, at)
}

// state is State for a record in a snapshot.
func (l *Ledger) state(r *record) State { return l.State(&r.Claim, l.now()) }

// Refresh records that a claim's container was still being started at a time, usually now. The task driver calls it every
// minute, since pulling an image may take an hour. It takes no lock and does not wait for the disk. If the claim is gone, the
// error is ErrUnknownClaim.
func (l *Ledger) Refresh(id string, at time.Time) error {
	err := os.Chtimes(l.recordPath(id), at, at)
	if os.IsNotExist(err) {
		err = ErrUnknownClaim
	}
	if err != nil {
		return fmt.Errorf("refresh claim %s: %w", id, err)
	}
	return nil
}

// Refreshed returns when the container of a claim was last known to be starting: the time of the last Refresh, or of the last
// change of the claim.
func (l *Ledger) Refreshed(c *Claim) time.Time {
	info, err := os.Lstat(l.recordPath(c.ID))
	if err != nil || info.ModTime().Before(c.Created) {
		return c.Created
	}
	return info.ModTime()
}
