package claim

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestRefresh(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 0)
	must.Less(t, time.Minute, time.Since(l.Refreshed(c)))
	later := time.Now().Add(time.Hour).Round(time.Second)
	must.NoError(t, l.Refresh(c.ID, later))
	must.True(t, l.Refreshed(c).Equal(later))
	must.Eq(t, []*Claim{c}, list(t, l), must.Sprint("nothing else has changed"))

	must.NoError(t, l.Refresh(c.ID, c.Created.Add(-time.Hour)))
	must.True(t, l.Refreshed(c).Equal(c.Created))
	must.ErrorIs(t, l.Refresh("01234567", later), ErrUnknownClaim)
}
