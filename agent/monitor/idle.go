package monitor

import (
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// Activity reports whether a running claim uses its GPU.
type Activity string

// The activities. A claim that was not observed for long enough, or whose utilization the driver does not report, is unknown
// and never idle.
const (
	ActivityUnknown           Activity = "unknown"
	ActivityActive            Activity = "active"
	ActivityIdleWithMemory    Activity = "idle_with_memory"
	ActivityIdleWithoutMemory Activity = "idle_without_memory"
)

const (
	// idleWindow is how long a claim must not be active before it is idle.
	idleWindow = 30 * time.Second
	// idleRatio is how busy any part of the GPU may be with a claim that is not active.
	idleRatio = 0.01
	// maxGap is how long may pass between two observations. What happened in a longer gap is unknown.
	maxGap = 3 * samplePeriod
)

// Idleness is what is known of a running claim's activity.
type Idleness struct {
	Activity Activity
	// LastActive is when the claim was seen to be active; zero if it never was.
	LastActive time.Time
	// Idle is how long it has been idle: 0 if it is active, nil if that is unknown.
	Idle *time.Duration
}

// Is reports whether the claim is known to be idle.
func (i *Idleness) Is() bool {
	return i.Activity == ActivityIdleWithMemory || i.Activity == ActivityIdleWithoutMemory
}

// PolicyAction is something that the idle policy does in a namespace: that it has observed, warned of, stopped, or failed to stop an
// allocation or its group.
type PolicyAction struct{ Namespace, Action string }

// observed is what was seen of a claim's container so far.
type observed struct {
	// init is the container's first process.
	init proc.ID
	// from is when the observation without gaps began, or the claim was last active; last is the latest observation.
	from, last time.Time
	lastActive time.Time
	// marks are those of the latest observation.
	marks marks
}

// marks are what only a claim that is active changes: what its region counts, and the GPU time that it had or waited for.
type marks struct {
	usedBytes, peakBytes, refused uint64
	processes                     int
	gpuSeconds, waitingSeconds    float64
}

// update takes over what is known of a claim, and reports whether that shows activity. The times of a new governor begin at 0.
func (m *marks) update(c *Claim) bool {
	before := *m
	if u := c.Usage; u != nil {
		m.usedBytes, m.peakBytes, m.refused, m.processes = u.UsedBytes, u.PeakBytes, u.Refused, len(u.Processes)
	}
	if had := c.Turns; had != nil {
		m.gpuSeconds, m.waitingSeconds = had.GPUSeconds, had.WaitingSeconds
	}
	return m.usedBytes != before.usedBytes || m.peakBytes != before.peakBytes || m.refused != before.refused ||
		m.processes != before.processes || m.gpuSeconds > before.gpuSeconds || m.waitingSeconds > before.waitingSeconds
}

// idleness observes claims. It is used while a snapshot is taken.
type idleness map[string]*observed

// observe records the activity of the claims of a snapshot, and says which are idle.
func (i *idleness) observe(s *Snapshot) {
	before := *i
	*i = make(idleness, len(s.Claims))
	for _, c := range s.Claims {
		if c.State != claim.StateRunning {
			continue
		}
		o := before[c.ID]
		init := proc.ID{PID: c.Container.InitPID, StartTime: c.Container.InitStartTime, BootID: c.Container.BootID}
		if o == nil || o.init != init {
			o = &observed{init: init, from: s.Time}
			o.marks.update(c)
		}
		(*i)[c.ID] = o
		c.Idleness = o.observe(c, s.Time)
	}
}

func (o *observed) observe(c *Claim, now time.Time) Idleness {
	if c.activity == nil || !o.last.IsZero() && now.Sub(o.last) > maxGap {
		o.from = now
	}
	o.last = now
	changed := o.marks.update(c)
	if c.activity == nil {
		return Idleness{Activity: ActivityUnknown, LastActive: o.lastActive}
	}
	var idle time.Duration
	is := Idleness{Activity: ActivityActive, Idle: &idle}
	if *c.activity > idleRatio || changed {
		o.from, o.lastActive = now, now
	}
	is.LastActive = o.lastActive
	switch quiet := now.Sub(o.from); {
	case quiet >= idleWindow:
		idle = quiet
		is.Activity = ActivityIdleWithoutMemory
		if c.Usage != nil && c.Usage.UsedBytes > 0 {
			is.Activity = ActivityIdleWithMemory
		}
	case o.lastActive != o.from: // it was not seen to be active, nor for long enough not to be
		is.Activity, is.Idle = ActivityUnknown, nil
	}
	return is
}
