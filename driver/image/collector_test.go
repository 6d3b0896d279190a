package image

import (
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/naming"
)

func TestCollector_UnusedSince(t *testing.T) {
	now := time.Now()
	label := func(at time.Time) map[string]string {
		return map[string]string{naming.UnusedSince: at.Format(time.RFC3339Nano)}
	}
	cases := []struct {
		name    string
		label   map[string]string
		lastUse time.Time
		want    time.Time
	}{
		{"noted by an earlier plugin process", label(now.Add(-time.Hour)), time.Time{}, now.Add(-time.Hour)},
		{"used since then", label(now.Add(-time.Hour)), now.Add(-time.Minute), now.Add(-time.Minute)},
		{"noted by this plugin process", label(now.Add(-time.Minute)), now.Add(-time.Minute), now.Add(-time.Minute)},
		{"never noted", nil, now.Add(-time.Minute), now.Add(-time.Minute)},
		{"nobody knows", nil, time.Time{}, now},
		{"a label that says nothing", map[string]string{naming.UnusedSince: "long ago"}, time.Time{}, now},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			collector := newCollector(nil, time.Hour)
			if !c.lastUse.IsZero() {
				collector.noteUse("busybox:1", c.lastUse)
			}
			record := images.Image{Name: "docker.io/library/busybox:1", Labels: c.label}
			got := collector.unusedSince(record)
			must.Less(t, time.Minute/2, got.Sub(c.want).Abs())
			must.Eq(t, got, collector.unusedSince(record), must.Sprint("it must not begin anew"))
		})
	}
}

func TestCollector_Due(t *testing.T) {
	c := newCollector(nil, time.Hour)
	must.Less(t, time.Minute/2, (time.Hour - c.due(time.Now())).Abs())
	// A plugin that has just started removes nothing yet.
	must.Less(t, time.Minute/2, (time.Minute - c.due(time.Now().Add(-2*time.Hour))).Abs())
	c.started = c.started.Add(-time.Minute)
	must.LessEq(t, 0, c.due(time.Now().Add(-time.Hour)))

	c.noteUse("busybox", time.Now())
	c.noteUse("busybox", time.Now().Add(-time.Hour))
	must.Less(t, time.Minute, time.Since(c.lastUseOf("docker.io/library/busybox:latest")))
	c.noteUse("oci-archive:local/x.tar", time.Now())
	must.MapLen(t, 1, c.lastUse)
	NewStore(Config{}).NoteUse("busybox") // without a collector
}
