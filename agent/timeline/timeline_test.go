package timeline

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// seen returns a snapshot with a GPU, and claims on it of which the utilization is known or nil.
func seen(at time.Time, percent *int64, claims map[string]*float64) *monitor.Snapshot {
	s := &monitor.Snapshot{Time: at, GPUs: []monitor.GPU{{UUID: "GPU-a"}}}
	s.GPUs[0].GPUPercent = percent
	for id, ratio := range claims {
		s.Claims = append(s.Claims, &monitor.Claim{
			Claim: &claim.Claim{ID: id, GPU: claim.GPU{UUID: "GPU-a"}}, State: claim.StateRunning, Utilization: ratio,
		})
	}
	return s
}

// drawn writes columns as digits of tenths, "?" where the utilization is not known, and " " where nothing was seen.
func drawn(l Line) string {
	text := ""
	for _, c := range l.Columns {
		switch {
		case c.Utilization != nil:
			text += string(rune('0' + int(*c.Utilization*10+0.5)))
		case c.Seen:
			text += "?"
		default:
			text += " "
		}
	}
	return text
}

func minute(n int) time.Time { return noon.Add(time.Duration(n) * time.Minute) }

func ratio(r float64) *float64 { return &r }

func TestTimeline_MeansByMinute(t *testing.T) {
	var l Timeline
	busy, idle := int64(80), int64(0)
	l.Observe(seen(minute(0), &busy, map[string]*float64{"a": ratio(0.3), "b": nil}))
	l.Observe(seen(minute(0).Add(30*time.Second), &idle, map[string]*float64{"a": ratio(0.5)}))
	l.Observe(seen(minute(1), nil, map[string]*float64{"a": ratio(0)}))
	l.Observe(seen(minute(4), &idle, nil)) // the agent did not run meanwhile
	gpu, claims := l.Of("GPU-a", minute(4), 6, time.Minute)
	must.Eq(t, " 4?  0", drawn(gpu))
	must.Len(t, 2, claims)
	must.Eq(t, "a", claims[0].ID) // it was there later
	must.Eq(t, " 40   ", drawn(claims[0]))
	must.Eq(t, " ?    ", drawn(claims[1]))

	gpu, claims = l.Of("GPU-a", minute(4), 3, 10*time.Minute)
	must.Eq(t, "  3", drawn(gpu))
	must.Eq(t, "  3", drawn(claims[0]))
	must.Eq(t, noon.Add(-20*time.Minute), Start(minute(4), 3, 10*time.Minute))

	_, claims = l.Of("GPU-a", minute(4), 3, time.Minute)
	must.Len(t, 0, claims) // they were there before
	gpu, claims = l.Of("GPU-b", minute(4), 3, time.Minute)
	must.Eq(t, "   ", drawn(gpu))
	must.Len(t, 0, claims)
}

func TestTimeline_KeepsADay(t *testing.T) {
	var l Timeline
	l.Observe(seen(minute(0), nil, map[string]*float64{"a": nil}))
	l.Observe(seen(minute(0).Add(Kept), nil, map[string]*float64{"b": nil}))
	gpu, claims := l.Of("GPU-a", minute(0).Add(Kept), 1441, time.Minute)
	must.Len(t, 2, claims)
	must.True(t, gpu.Columns[0].Seen)
	l.Observe(seen(minute(1).Add(Kept), nil, nil))
	must.MapLen(t, 1, l.claims)
	must.Len(t, 1441, l.gpus["GPU-a"].steps)
	l.Observe(seen(minute(0).Add(30*Kept), nil, nil)) // the clock was set
	must.MapLen(t, 0, l.claims)
	must.Len(t, 1, l.gpus["GPU-a"].steps)
}

// TestTimeline_ClockSetBack drops what is in the future now, and continues.
func TestTimeline_ClockSetBack(t *testing.T) {
	var l Timeline
	busy, idle := int64(90), int64(10)
	for i := range 5 {
		l.Observe(seen(minute(i), &busy, nil))
	}
	l.Observe(seen(minute(1), &idle, nil))
	gpu, _ := l.Of("GPU-a", minute(4), 5, time.Minute)
	must.Eq(t, "95   ", drawn(gpu))
	l.Observe(seen(minute(-3), &idle, nil))
	gpu, _ = l.Of("GPU-a", minute(1), 5, time.Minute)
	must.Eq(t, "1    ", drawn(gpu))
}
