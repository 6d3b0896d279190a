package runs

import (
	"io/fs"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sync/errgroup"

	"github.com/tranche-gpu/tranche/claim"
)

// Of changes at the same time none is lost, and a command without a part of the GPU's time gets no record.
func TestChangeRecord(t *testing.T) {
	dir := t.TempDir()
	share := func(c *claim.Claim) error {
		c.Compute.Share++
		return nil
	}
	must.ErrorIs(t, ChangeRecord(t.Context(), dir, share), fs.ErrNotExist)
	_, err := ReadRecord(dir)
	must.ErrorIs(t, err, fs.ErrNotExist)

	must.NoError(t, WriteRecord(dir, &claim.Claim{ID: "0123abcd", Compute: &claim.Compute{Share: 1, Max: 1000}}))
	const changes = 20
	var group errgroup.Group
	for range 2 {
		group.Go(func() error {
			for range changes {
				if err := ChangeRecord(t.Context(), dir, share); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must.NoError(t, group.Wait())
	c, err := ReadRecord(dir)
	must.NoError(t, err)
	must.Eq(t, 1+2*changes, c.Compute.Share)
}
