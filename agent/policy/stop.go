package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim/idle"
)

const (
	// heldFor is how long a group that is held back is not looked at again, and failedFor one that could not be stopped.
	heldFor   = time.Minute
	failedFor = 10 * time.Minute
)

// stopDue stops the groups all of whose allocations have been warned of for long enough.
func (p *Policy) stopDue(ctx context.Context, s *monitor.Snapshot) {
	now := s.Time
	p.stops = slices.DeleteFunc(p.stops, func(at time.Time) bool { return now.Sub(at) >= time.Hour })
	groups := make(map[group][]*idling)
	var order []group
	for _, i := range p.warned() {
		if i.rule.Action != Stop || i.state == idle.Stopped || now.Before(i.stopAt()) || now.Before(i.retry) {
			continue
		}
		g := group{i.of.Namespace, i.of.Job, i.of.Group}
		if i.job.child {
			g.name = ""
		}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], i)
	}
	for _, g := range order {
		if len(p.stops) >= p.Config.StopsPerHour {
			p.hold(groups[g], fmt.Sprintf("%d groups were stopped in the last hour, which is idle.stops_per_hour", p.Config.StopsPerHour), now)
			continue
		}
		p.stopGroup(ctx, g, groups[g], s)
	}
}

// warned returns the allocations that were warned of, the earliest first.
func (p *Policy) warned() []*idling {
	var warned []*idling
	for _, i := range p.known {
		if !i.warned.IsZero() {
			warned = append(warned, i)
		}
	}
	slices.SortFunc(warned, func(a, b *idling) int {
		return cmp.Or(a.warned.Compare(b.warned), cmp.Compare(a.of.Allocation, b.of.Allocation))
	})
	return warned
}

// stopGroup stops a group unless it has allocations beside those that are due. They may have got more time meanwhile.
func (p *Policy) stopGroup(ctx context.Context, g group, due []*idling, s *monitor.Snapshot) {
	now := s.Time
	var ids []string
	for _, i := range due {
		if !p.lookUp(ctx, i, s) {
			i.retry = now.Add(heldFor)
			return
		}
		if i.idle < i.allowed {
			i.warned, i.state, i.note = time.Time{}, "", ""
			continue
		}
		ids = append(ids, i.of.Allocation)
	}
	due = slices.DeleteFunc(due, func(i *idling) bool { return i.warned.IsZero() })
	if len(due) == 0 {
		return
	}
	modifyIndex, err := p.jobs.check(ctx, g, due[0].job.nodeID, ids)
	var held heldError
	switch {
	case errors.As(err, &held):
		p.hold(due, held.why, now.Add(heldFor))
		return
	case err != nil:
		p.failed(due, err, now)
		return
	}
	p.stops = append(p.stops, now)
	mark(due, idle.Stopped, "")
	p.publish() // before the tasks end, so that they have an event that says why
	n := p.notice(due[0], now)
	n.Allocations = ids
	if err := p.jobs.stop(ctx, g, modifyIndex, n.Message); err != nil {
		if refused(err) {
			p.stops = p.stops[:len(p.stops)-1]
		}
		p.failed(due, err, now)
		return
	}
	p.count(g.namespace, string(idle.Stopped))
	p.Logger.Warn("stopped a group that was idle", "workload", due[0].of.String(), "allocations", ids, "idle", due[0].idle.Truncate(time.Second))
	p.webhook.send(n)
}

// hold records why allocations are not stopped until a time.
func (p *Policy) hold(due []*idling, why string, until time.Time) {
	if due[0].note != why {
		p.Logger.Warn("a group that is idle is not stopped", "workload", due[0].of.String(), "reason", why)
	}
	mark(due, idle.Held, why)
	for _, i := range due {
		i.retry = until
	}
}

// failed records that allocations could not be stopped.
func (p *Policy) failed(due []*idling, err error, now time.Time) {
	p.count(due[0].of.Namespace, "failed")
	p.hold(due, err.Error(), now.Add(failedFor))
}

func mark(due []*idling, state idle.State, note string) {
	for _, i := range due {
		i.state, i.note = state, note
	}
}
