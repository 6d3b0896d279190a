package claim

import (
	"fmt"
	"os"
	"time"
)

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
