package usage

import (
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// A database of version 1 keeps all that it has, and is read by no older program from then on.
func TestOpen_Version1(t *testing.T) {
	schema1, err := os.ReadFile("testdata/schema-1.sql")
	must.NoError(t, err)
	place := Place{StateDir: t.TempDir(), Node: "gpu-1"}
	db, err := sql.Open("sqlite", databasePath(place.StateDir))
	must.NoError(t, err)
	_, err = db.ExecContext(t.Context(), string(schema1)+`
INSERT INTO watermark VALUES (1, 3, 4711, 1000, 2000, 'boot');
INSERT INTO gpu VALUES ('GPU-a', 1, 'NVIDIA H200', 17179869184, 0);
INSERT INTO claim VALUES (7, 'aaaaaaaa', 500, 'nomad', 2000, 'boot', 0, 1, 0, 0, 'default', 'web', '', 'g', 't', 'alloc', '', 1, 5, 1500, 2.5, 3.5);
INSERT INTO claim VALUES (9, 'bbbbbbbb', 600, 'external', 1900, 'boot', 0, 0, 1, 1, '', '', '', '', '', '', 'box', 0, 0, 10, 0, 0);
INSERT INTO hour VALUES (400000, 7, 'GPU-a', 'slice', 1073741824, -1, 1000, 400, 1.5), (400001, 7, 'GPU-a', 'slice', 1073741824, -1, 500, 0, 0),
  (400000, 9, 'GPU-b', 'slice', 2147483648, 1000, 10, 0, 0);
INSERT INTO gap VALUES (1500, 1600, 'the reason');`)
	must.NoError(t, err)
	must.NoError(t, db.Close())

	n := openNode(t, place, t.TempDir())
	web := claim.Workload{Namespace: "default", Job: "web", Group: "g", Task: "t", Allocation: "alloc", Verified: true}
	gpu := GPUName{UUID: "GPU-a", Model: "NVIDIA H200", Index: 1}
	hour := time.UnixMilli(400_000 * hourMillis).UTC()
	must.Eq(t, []Line{
		{
			Hour: hour, ClaimID: "aaaaaaaa", Created: time.UnixMilli(500).UTC(), Owner: "nomad", Workload: web, GPU: gpu, Mode: "slice",
			Bytes: 1 << 30, Share: -1, ReservedMillis: 1000, ObservedMillis: 400, UsedGiBMillis: 1.5, PeakBytes: 5, UnobservedMillis: 600,
		},
		{
			Hour: hour, ClaimID: "bbbbbbbb", Created: time.UnixMilli(600).UTC(), Owner: "external", Workload: claim.Workload{ContainerName: "box"},
			GPU: GPUName{UUID: "GPU-b", Index: -1}, Mode: "slice", Bytes: 2 << 30, Share: 1000, ReservedMillis: 10, UnobservedMillis: 10,
		},
		{
			Hour: hour.Add(time.Hour), ClaimID: "aaaaaaaa", Created: time.UnixMilli(500).UTC(), Owner: "nomad", Workload: web, GPU: gpu, Mode: "slice",
			Bytes: 1 << 30, Share: -1, ReservedMillis: 500, PeakBytes: 5, UnobservedMillis: 500,
		},
	}, n.lines(t))
	must.Eq(t, []string{"the reason"}, n.store.gaps(t))
	begun, seen, err := n.store.Accounted(t.Context())
	must.NoError(t, err)
	must.Eq(t, []int64{1000, 2000}, []int64{begun.UnixMilli(), seen.UnixMilli()})
	totals, err := n.store.Totals(t.Context())
	must.NoError(t, err)
	must.Eq(t, map[string]Total{"aaaaaaaa": {1500, 2.5, 3.5}}, totals.Claims)
	var segment, position, version int
	must.NoError(t, n.store.db.QueryRowContext(t.Context(), "SELECT segment, position, user_version FROM node, pragma_user_version").
		Scan(&segment, &position, &version))
	must.Eq(t, []int{3, 4711, 2}, []int{segment, position, version})
	n.collect(t)
	must.Eq(t, "gpu-1", n.lines(t)[0].Node)
}
