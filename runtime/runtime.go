// Package runtime prepares the edits to a container's OCI spec that give the container the GPUs of its claims. Prepare and
// Config are the interface for its two callers, so that both make the same edits: the task driver, which edits specs before
// containerd has them, and the OCI runtime in runtime/wrapper, for containers of other engines.
package runtime

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

// PrepareTimeout bounds the time of Prepare in an OCI runtime: enough to generate a CDI spec while the driver wakes up, and
// short for users who wait for the container.
const PrepareTimeout = time.Minute

// Prepare returns the edits for the container containerID, which is to get the claims. It creates the regions that the
// container needs, and refuses claims that another living container holds: binding would refuse them too, but only once the
// container has been built.
//
// The container may allocate hostMemoryBytes of host memory beyond the limit of HostMemoryClaim.
func Prepare(
	ctx context.Context, ledger *claim.Ledger, cfg Config, containerID string, claims []*claim.Claim,
	hostMemoryBytes uint64,
) (edit.Modifier, error) {
	prepared, err := prepareClaims(ctx, ledger, containerID, claims, hostMemoryBytes)
	if err != nil {
		return nil, err
	}
	return Edits(ctx, cfg, prepared)
}

// Edits returns the edits for a container with these claims, which have to be prepared. Without claims there are none.
func Edits(ctx context.Context, cfg Config, claims []edit.Claim) (edit.Modifier, error) {
	if len(claims) == 0 {
		return edit.Modifiers{}, nil
	}
	cfg = cfg.WithDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.RefreshNodeInfo = cfg.refresher()
	return edit.New(ctx, cfg.Node, claims)
}

// HostMemoryClaim returns the claim, of those of one container, beyond whose limit the container may allocate host memory:
// the first whose limit the shadow library enforces, or nil if there is none. Claims are in the order of their GPUs.
func HostMemoryClaim(claims []*claim.Claim) *claim.Claim {
	i := slices.IndexFunc(claims, func(c *claim.Claim) bool { return c.Enforced() == claim.EnforcementLibrary })
	if i < 0 {
		return nil
	}
	return claims[i]
}

// prepareClaims checks that the claims are free for the container, and creates the regions. A container without the shadow
// library needs none.
func prepareClaims(
	ctx context.Context, ledger *claim.Ledger, containerID string, claims []*claim.Claim, hostMemoryBytes uint64,
) ([]edit.Claim, error) {
	limited := HostMemoryClaim(claims)
	if limited == nil && hostMemoryBytes > 0 {
		return nil, fmt.Errorf("give container %s %s of host memory: its GPUs have no limit that the shadow library enforces; "+
			"request no host memory, or set enforcement = %q", containerID, size.Format(hostMemoryBytes), claim.EnforcementLibrary)
	}
	shadowed := slices.ContainsFunc(claims, (*claim.Claim).Shadowed)
	var prepared []edit.Claim
	for _, c := range claims {
		if c.Making() {
			return nil, fmt.Errorf("give container %s claim %s: its MIG instance is not created yet; stop the job and run it "+
				"again", containerID, c.ID)
		}
		if held := c.Container; held != nil && c.Released.IsZero() && claim.Alive(*held) {
			return nil, &claim.BoundError{Claim: c, Container: claim.Container{ID: containerID}}
		}
		one := edit.Claim{Claim: c}
		if shadowed {
			var beyond uint64
			if c == limited {
				beyond = hostMemoryBytes
			}
			var err error
			if one.RegionDir, err = ledger.PrepareRegion(ctx, c.ID, containerID, beyond); err != nil {
				return nil, fmt.Errorf("give container %s its claim: %w", containerID, err)
			}
		}
		prepared = append(prepared, one)
	}
	return prepared, nil
}
