package runtime

import (
	"context"
	"fmt"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
)

// anyLimited tells whether a container with these grants is held to a limit. If it is on one GPU, the shadow is in front
// of the driver for all of them, and has to know each: the others have all their memory as limit then.
func anyLimited(grants []Grant) bool {
	return slices.ContainsFunc(grants, func(g Grant) bool { return g.Claim.Limited() })
}

// HostMemoryClaim is the claim, of those of one container, beyond whose limit the container may allocate: the first that
// has a limit. Claims are in the order of their GPUs. It is nil where none has.
func HostMemoryClaim(claims []*claim.Claim) *claim.Claim {
	if i := slices.IndexFunc(claims, (*claim.Claim).Limited); i >= 0 {
		return claims[i]
	}
	return nil
}

// newGrants makes sure that the claims are free for the container, and makes the regions that it needs. Without a limit
// it needs none.
func newGrants(
	ctx context.Context, ledger *claim.Ledger, containerID string, claims []*claim.Claim, hostMemoryBytes uint64,
) ([]Grant, error) {
	limited := HostMemoryClaim(claims)
	if limited == nil && hostMemoryBytes > 0 {
		return nil, fmt.Errorf("give container %s %s of host memory beyond its limit: it has GPUs without a limit only; ask "+
			"for none", containerID, memsize.Format(hostMemoryBytes))
	}
	var grants []Grant
	for _, c := range claims {
		if c.Making() {
			return nil, fmt.Errorf("give container %s its claim: the MIG instance of claim %s is not made yet; stop the job and run "+
				"it again", containerID, c.ID)
		}
		if held := c.Container; held != nil && c.Released.IsZero() && claim.Alive(*held) {
			return nil, &claim.BoundError{Claim: c, Container: claim.Container{ID: containerID}}
		}
		grant := Grant{Claim: c}
		if limited != nil {
			var beyond uint64
			if c == limited {
				beyond = hostMemoryBytes
			}
			var err error
			if grant.RegionDir, err = ledger.PrepareRegion(ctx, c.ID, containerID, beyond); err != nil {
				return nil, fmt.Errorf("give container %s its claim: %w", containerID, err)
			}
		}
		grants = append(grants, grant)
	}
	return grants, nil
}
