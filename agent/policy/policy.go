// Package policy warns of allocations that have not used their GPUs for too long, and stops their groups through Nomad's API, as the
// operator has configured for their namespace. It changes no claim and no container, and never acts on unknown state.
package policy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/idle"
)

// period is how often the claims are looked at.
const period = 10 * time.Second

// Options are what a policy needs.
type Options struct {
	Config Config
	// Snapshot returns the state of the node.
	Snapshot func(context.Context) *monitor.Snapshot
	// RunDir is the directory in which is published which claims are idle for too long.
	RunDir string
	// Node is the node's name, for the webhook.
	Node   string
	Logger hclog.Logger
}

// Policy is the idle policy of a node. Make one with New.
type Policy struct {
	Options
	jobs    jobs
	webhook *webhook
	// lookupError is the last one, so that it is logged once.
	lookupError string
	// known are the allocations that have been idle for longer than their rule allows, by ID; their jobs may extend that.
	known map[string]*idling
	// stops are when groups were stopped in the last hour.
	stops []time.Time
	// published is what was published last.
	published idle.Report

	mu    sync.Mutex
	taken map[monitor.PolicyAction]uint64
}

// New returns the policy of a node.
func New(o Options) *Policy {
	return &Policy{
		Options: o, jobs: jobs{o.Config.Nomad}, webhook: newWebhook(o.Config.WebhookFile, o.Logger),
		known: make(map[string]*idling), taken: make(map[monitor.PolicyAction]uint64),
	}
}

// Run carries the policy out until the context ends. Idle time that an earlier process saw does not count.
func (p *Policy) Run(ctx context.Context) {
	before, err := idle.Read(p.RunDir)
	if err != nil {
		p.Logger.Warn("cannot read which groups were stopped in the last hour", "error", err)
	}
	p.stops = before.Stops
	p.published = idle.Report{Claims: map[string]idle.Condition{"": {}}} // which differs from all that may be published now
	if !p.Config.Enabled() {
		if len(before.Claims) > 0 || err != nil {
			p.publish()
		}
		return
	}
	defer func() { // nobody will stop them now
		p.known = nil
		p.publish()
	}()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() { p.webhook.run(ctx) })
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		p.step(ctx, p.Snapshot(ctx))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Actions returns what was done since the agent started.
func (p *Policy) Actions() map[monitor.PolicyAction]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.taken)
}

func (p *Policy) count(namespace, action string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[monitor.PolicyAction{Namespace: namespace, Action: action}]++
}

// idling is an allocation that has been idle for longer than its rule allows.
type idling struct {
	allocation
	rule Rule
	// allowed is for how long it may be idle, and job what Nomad said of its job; nil if that was not looked up.
	allowed time.Duration
	job     *job
	// since is since when it is idle; state is empty, and warned zero, until it is due.
	since, warned time.Time
	state         idle.State
	note          string
	// retry is from when on another attempt to stop the group is made.
	retry time.Time
}

// stopAt is from when on the group is to be stopped.
func (i *idling) stopAt() time.Time { return i.warned.Add(i.rule.Grace) }

// step looks at the claims once.
func (p *Policy) step(ctx context.Context, s *monitor.Snapshot) {
	before := p.known
	p.known = make(map[string]*idling)
	for _, a := range allocationsOf(s) {
		rule := p.Config.Rule(a.of.Namespace)
		if rule.Action == Off || a.idle < rule.After {
			continue // activity ends what was begun
		}
		i := before[a.of.Allocation]
		if i == nil {
			i = &idling{allowed: rule.After, since: s.Time.Add(-a.idle)}
		}
		i.allocation, i.rule = a, rule
		p.known[a.of.Allocation] = i
		p.judge(ctx, i, s)
	}
	p.stopDue(ctx, s)
	p.publish()
}

// judge warns of an allocation that has been idle for too long.
func (p *Policy) judge(ctx context.Context, i *idling, s *monitor.Snapshot) {
	if !i.warned.IsZero() || i.idle < i.allowed || !p.lookUp(ctx, i, s) || i.idle < i.allowed {
		return
	}
	i.warned = s.Time
	if i.rule.Action == Observe {
		i.state = idle.Observed
		p.count(i.of.Namespace, string(idle.Observed))
		p.Logger.Info("allocation is idle", "workload", i.of.String(), "idle", i.idle.Truncate(time.Second))
		return
	}
	i.state = idle.Warned
	p.count(i.of.Namespace, string(idle.Warned))
	p.Logger.Warn("allocation is idle", "workload", i.of.String(), "idle", i.idle.Truncate(time.Second), "policy", string(i.rule.Action))
	p.webhook.send(p.notice(i, s.Time))
}

// lookUp finds out for how long an allocation may be idle, and reports whether it could.
func (p *Policy) lookUp(ctx context.Context, i *idling, s *monitor.Snapshot) bool {
	if p.Config.Nomad.Address == "" {
		return true
	}
	found, err := p.jobs.of(ctx, i.of)
	if err != nil {
		if err.Error() != p.lookupError && ctx.Err() == nil {
			p.Logger.Warn("cannot look up in Nomad for how long a job may be idle; trying again", "nomad_address", p.Config.Nomad.Address,
				"error", err)
		}
		p.lookupError = err.Error()
		return false
	}
	p.lookupError = ""
	if found.problem != "" && i.job == nil {
		p.Logger.Warn("a job's meta is ignored", "workload", i.of.String(), "problem", found.problem)
	}
	i.job = found
	i.allowed = max(i.rule.After, min(found.idleAfter, i.rule.MaxAfter))
	if device := i.unknownUse(found.devices, s); device != "" {
		p.Logger.Debug("it is not known whether an allocation uses one of its devices", "workload", i.of.String(), "device", device)
		i.allowed = max(i.allowed, i.idle+heldFor)
	}
	return true
}

// publish writes what holds of the claims now, if it differs from before.
func (p *Policy) publish() {
	r := idle.Report{Claims: make(map[string]idle.Condition), Stops: p.stops}
	for _, i := range p.known {
		if i.state == "" {
			continue
		}
		condition := idle.Condition{State: i.state, Since: i.since, Note: i.note}
		if i.rule.Action == Stop && i.state == idle.Warned {
			at := i.stopAt()
			condition.StopAt = &at
		}
		for _, c := range i.claims {
			condition.Container = c.ContainerKey()
			r.Claims[c.ID] = condition
		}
	}
	if equal(r, p.published) {
		return
	}
	if err := idle.Write(p.RunDir, r); err != nil {
		p.Logger.Warn("tasks get no events of idle claims", "error", err)
		return
	}
	p.published = r
}

func equal(a, b idle.Report) bool {
	return slices.EqualFunc(a.Stops, b.Stops, time.Time.Equal) && maps.EqualFunc(a.Claims, b.Claims, func(a, b idle.Condition) bool {
		return a.State == b.State && a.Container == b.Container && a.String() == b.String()
	})
}

// allocation is an allocation on this node all of whose claims are idle.
type allocation struct {
	of     claim.Workload
	claims []*monitor.Claim
	// idle is for how long they all have been.
	idle time.Duration
}

// unknownUse returns a device of the allocation that may be in use: that of a task whose claim nobody knows to be the allocation's, or
// of another device plugin. A dormant claim is of a task that has ended.
func (a *allocation) unknownUse(devices []string, s *monitor.Snapshot) string {
	unused := make(map[string]bool)
	for _, c := range s.Claims {
		if !c.Holds() || slices.Contains(a.claims, c) {
			for _, slice := range c.Slices {
				unused[slice] = true
			}
		}
	}
	for _, device := range devices {
		if !unused[device] {
			return device
		}
	}
	return ""
}

// allocationsOf returns the allocations that are known to be idle, in the order of their claims: those that Nomad has stated to be of
// one. A name that a container states can only keep an allocation from being idle.
func allocationsOf(s *monitor.Snapshot) []allocation {
	var order []string
	all := make(map[string]*allocation)
	active := make(map[string]bool)
	for _, c := range s.Claims {
		id := c.Workload.Allocation
		switch {
		case !c.Holds() || id == "":
			continue
		case !c.Idleness.Is():
			active[id] = true
			continue
		case !c.Workload.Verified:
			continue
		}
		a := all[id]
		if a == nil {
			a = &allocation{of: c.Workload, idle: *c.Idleness.Idle}
			all[id] = a
			order = append(order, id)
		}
		a.claims, a.idle = append(a.claims, c), min(a.idle, *c.Idleness.Idle)
	}
	var found []allocation
	for _, id := range order {
		if !active[id] {
			found = append(found, *all[id])
		}
	}
	return found
}
