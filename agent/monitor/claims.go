package monitor

import (
	"context"
	"errors"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/governor/status"
)

// addClaims adds the claims of the ledger, and those of `tranche run`.
func (m *Monitor) addClaims(ctx context.Context, s *Snapshot) {
	m.addLedger(ctx, s)
	if m.Runs != nil {
		s.Claims = append(s.Claims, m.Runs()...)
	}
}

func (m *Monitor) addLedger(ctx context.Context, s *Snapshot) {
	claims, problems, err := m.Ledger.Recent(ctx)
	if err != nil {
		s.Errors[SourceLedger] = err.Error()
		return
	}
	s.Problems = problems
	workloads := m.Ledger.Workloads()
	for _, c := range claims {
		use := &Claim{Claim: c, Workload: workloads[c.ID], State: m.Ledger.State(c, s.Time), GPUIndex: -1}
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

// addTurns adds what governed claims have had of their GPUs' time, as the governor publishes it.
func (m *Monitor) addTurns(s *Snapshot) {
	if !slices.ContainsFunc(s.Claims, func(c *Claim) bool { return c.Governed() && c.State == claim.StateRunning }) {
		return
	}
	published, err := status.Current(m.RunDir, s.Time)
	if err != nil {
		s.Errors[SourceGovernor] = err.Error()
		return
	}
	for _, c := range s.Claims {
		if turns, ok := published.Claims[c.ID]; ok && c.Governed() {
			c.Turns = &turns
		}
	}
}

// addIdleTooLong adds which claims have been idle for too long, as the agent publishes it.
func (m *Monitor) addIdleTooLong(s *Snapshot) {
	published, err := idle.Read(m.RunDir)
	if err != nil {
		s.Errors[SourceIdle] = err.Error()
		return
	}
	for _, c := range s.Claims {
		if condition, ok := published.Of(c.Claim); ok && c.State == claim.StateRunning {
			c.IdleTooLong = &condition
		}
	}
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
		if condition, ok := published.Of(c.Claim); ok && c.State == claim.StateRunning {
			c.Uncounted = &condition
		}
	}
}
