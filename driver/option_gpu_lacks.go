package driver

import (
	"context"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
)

// lacking says what keeps the programs of a started task from finding its GPU: the hook that bound the claims has looked
// at the container's image. It is for the task's events only, so a ledger that cannot be read now says nothing.
func (g *grants) lacking(ctx context.Context, held *grant) []string {
	if len(held.claims) == 0 {
		return nil
	}
	ledger, err := g.open()
	if err != nil {
		return nil
	}
	claims, _, err := ledger.List(ctx)
	if err != nil {
		return nil
	}
	var lines []string
	for _, c := range claims {
		mine := slices.ContainsFunc(held.claims, func(h *claim.Claim) bool { return h.ID == c.ID })
		if mine && c.Container != nil && c.Container.Lacks != "" {
			lines = append(lines, "GPU: "+c.Container.Lacks)
		}
	}
	return slices.Compact(lines)
}
