package monitor

import (
	"context"
	"errors"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
)

// addClaims adds the claims of the ledger.
func (m *Monitor) addClaims(ctx context.Context, s *Snapshot) {
	claims, problems, err := m.Ledger.Recent(ctx)
	if err != nil {
		s.Errors[SourceLedger] = err.Error()
		return
	}
	s.Problems = problems
	workloads := m.Ledger.Workloads()
	for _, c := range claims {
		use := &Claim{Claim: c, Workload: workloads[c.ID], State: m.stateOf(c), GPUIndex: -1}
		usage, err := m.Ledger.UsageOf(c)
		switch {
		case err == nil:
			use.Usage = &usage
		case !errors.Is(err, claim.ErrNotCounted):
			use.UsageError = err.Error()
		}
		s.Claims = append(s.Claims, use)
	}
}

func (m *Monitor) stateOf(c *claim.Claim) State {
	switch {
	case c.Container == nil && c.Owner == claim.OwnerExternal && !c.Starting(m.now()):
		return StateEnded
	case c.Container == nil:
		return StateReserved
	case claim.Alive(*c.Container):
		return StateRunning
	case c.Owner == claim.OwnerExternal:
		return StateEnded
	}
	return StateDormant
}

// addHealth adds which GPUs are unhealthy and which claims have uncounted memory, as the device plugin publishes it.
func (m *Monitor) addHealth(s *Snapshot) {
	published, err := health.Read(m.RunDir)
	if err != nil {
		s.Errors[SourceHealth] = err.Error()
		return
	}
	for i, g := range s.GPUs {
		if condition, ok := published.GPUs[g.UUID]; ok {
			s.GPUs[i].Unhealthy = &condition
		}
	}
	for _, c := range s.Claims {
		if condition, ok := published.Uncounted[c.ID]; ok && c.State == StateRunning {
			c.Uncounted = &condition
		}
	}
}
