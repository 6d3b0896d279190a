package monitor

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/governor/status"
)

// observation is how busy a claim is some seconds after the last observation; nil is unknown.
type observation struct {
	seconds int
	ratio   *float64
	used    uint64
	// waited is for how many seconds the claim has waited for the GPU.
	waited float64
	// container is which container has the claim.
	container int
}

func ratio(value float64) *float64 { return &value }

func TestIdleness(t *testing.T) {
	idle, busy := ratio(0.01), ratio(0.02)
	for name, c := range map[string]struct {
		seen     []observation
		want     Activity
		wantIdle int // seconds; -1 is unknown
	}{
		"at once":               {[]observation{{0, idle, 1, 0, 1}}, ActivityUnknown, -1},
		"active at once":        {[]observation{{0, busy, 1, 0, 1}}, ActivityActive, 0},
		"short of the window":   {[]observation{{0, idle, 1, 0, 1}, {29, idle, 1, 0, 1}}, ActivityUnknown, -1},
		"idle with memory":      {[]observation{{0, idle, 1, 0, 1}, {30, idle, 1, 0, 1}}, ActivityIdleWithMemory, 30},
		"idle without memory":   {[]observation{{0, idle, 0, 0, 1}, {30, idle, 0, 0, 1}}, ActivityIdleWithoutMemory, 30},
		"active a moment ago":   {[]observation{{0, busy, 1, 0, 1}, {29, idle, 1, 0, 1}}, ActivityActive, 0},
		"idle after activity":   {[]observation{{0, busy, 1, 0, 1}, {20, idle, 1, 0, 1}, {20, idle, 1, 0, 1}}, ActivityIdleWithMemory, 40},
		"active in between":     {[]observation{{0, idle, 1, 0, 1}, {20, busy, 1, 0, 1}, {20, idle, 1, 0, 1}}, ActivityActive, 0},
		"unknown now":           {[]observation{{0, idle, 1, 0, 1}, {30, nil, 1, 0, 1}}, ActivityUnknown, -1},
		"unknown in between":    {[]observation{{0, idle, 1, 0, 1}, {20, nil, 1, 0, 1}, {20, idle, 1, 0, 1}}, ActivityUnknown, -1},
		"not observed for long": {[]observation{{0, idle, 1, 0, 1}, {31, idle, 1, 0, 1}}, ActivityUnknown, -1},
		"allocates in between":  {[]observation{{0, idle, 1, 0, 1}, {20, idle, 2, 0, 1}, {20, idle, 2, 0, 1}}, ActivityActive, 0},
		"waits for its turn":    {[]observation{{0, idle, 1, 1, 1}, {20, idle, 1, 5, 1}, {20, idle, 1, 9, 1}}, ActivityActive, 0},
		"another governor":      {[]observation{{0, idle, 1, 9, 1}, {30, idle, 1, 0, 1}}, ActivityIdleWithMemory, 30},
		"another container":     {[]observation{{0, idle, 1, 0, 1}, {30, idle, 1, 0, 2}}, ActivityUnknown, -1},
	} {
		t.Run(name, func(t *testing.T) {
			var i idleness
			now := time.Unix(1_800_000_000, 0)
			var last *Claim
			for _, o := range c.seen {
				now = now.Add(time.Duration(o.seconds) * time.Second)
				last = &Claim{
					Claim: &claim.Claim{ID: "aaaaaaaa", Container: &claim.Container{InitPID: o.container}}, State: claim.StateRunning,
					Usage: &region.Usage{UsedBytes: o.used}, Turns: &status.Claim{WaitingSeconds: o.waited}, activity: o.ratio,
				}
				i.observe(&Snapshot{Time: now, Claims: []*Claim{last}})
			}
			must.Eq(t, c.want, last.Idleness.Activity)
			if c.wantIdle < 0 {
				must.Nil(t, last.Idleness.Idle)
				return
			}
			must.Eq(t, time.Duration(c.wantIdle)*time.Second, *last.Idleness.Idle)
		})
	}
}

func TestIdleness_ForgetsClaimsThatDoNotRun(t *testing.T) {
	var i idleness
	c := &Claim{Claim: &claim.Claim{ID: "aaaaaaaa", Container: &claim.Container{}}, State: claim.StateRunning, activity: ratio(0)}
	i.observe(&Snapshot{Time: time.Unix(1, 0), Claims: []*Claim{c}})
	must.MapLen(t, 1, i)
	c.State = claim.StateDormant
	i.observe(&Snapshot{Time: time.Unix(2, 0), Claims: []*Claim{c}})
	must.MapLen(t, 0, i)
}
