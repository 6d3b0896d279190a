package claim

import (
	"fmt"
	"os"
	"time"
)

// Refresh notes that a claim's container was still to come at a time, usually now. Who starts the container calls it every
// minute while that takes: an image may have to be pulled for an hour. It waits for no lock and not for the disk; a claim
// that is gone is ErrUnknownClaim.
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

// Refreshed returns when the container of a claim was last known to be on its way: at the last Refresh, or when the claim
// was made or last changed.
func (l *Ledger) Refreshed(c *Claim) time.Time {
	info, err := os.Lstat(l.recordPath(c.ID))
	if err != nil || info.ModTime().Before(c.Created) {
		return c.Created
	}
	return info.ModTime()
}
