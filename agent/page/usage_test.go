package page

import (
	"context"
	"encoding/csv"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/agenttest"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/bill"
	"github.com/tranche-gpu/tranche/usage/usagetest"
)

// reporter returns the usage of a job with a hostile name in November 2026.
func reporter(t *testing.T) func(context.Context, bill.By, time.Time, time.Time) (*bill.Report, error) {
	t.Helper()
	november := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	store := usagetest.Fill(t, t.TempDir(), []usage.Line{{
		Hour: november, ClaimID: "aaaaaaaa", Created: november, Workload: claim.Workload{Namespace: "default", Job: agenttest.Hostile},
		GPU: usage.GPUName{UUID: "GPU-a", Model: "NVIDIA H200"}, Bytes: 4 << 30, Share: usage.WholeShare / 4, ReservedMillis: 1_800_000,
	}}, []usage.Gap{{From: november, To: november.Add(time.Hour), Reason: "gap " + agenttest.Hostile}})
	return func(ctx context.Context, by bill.By, from, to time.Time) (*bill.Report, error) {
		return bill.Make(ctx, store, by, usage.Query{From: from, To: to}, bill.Prices{})
	}
}

func TestUsage(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	for _, path := range []string{"/usage/job/2026-11", "/usage/job/2026-11-01"} {
		status, body := request(path)
		must.Eq(t, http.StatusOK, status)
		must.StrContains(t, body, `<td class="number">2.000</td>`)
		must.StrContains(t, body, `<td class="number">0.125</td>`)
		must.StrContains(t, body, "(unverified)")
		must.StrContains(t, body, "Accounted up to 2026-11-26 11:59:00 UTC")
		must.StrContains(t, body, "gap ")
		must.StrContains(t, body, "/usage/namespace/")
	}
	for path, want := range map[string]string{
		"/usage": "Usage by job", "/usage/gpu/2026-11": "NVIDIA H200", "/usage/job/2026-10": "No claims.", "/usage/job/2026-11-02": "No claims.",
	} {
		status, body := request(path)
		must.Eq(t, http.StatusOK, status)
		must.StrContains(t, body, want)
	}
	for _, path := range []string{"/usage/user/2026-11", "/usage/job/2026-13", "/usage/job/x", "/usage/job/2026-11-31/csv", "/usage/x/2026-11/csv"} {
		status, _ := request(path)
		must.Eq(t, http.StatusNotFound, status, must.Sprint(path))
	}
}

func TestUsage_CSV(t *testing.T) {
	request := site(t, agenttest.Snapshot())
	status, body := request("/usage/job/2026-11/csv")
	must.Eq(t, http.StatusOK, status)
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	must.NoError(t, err)
	must.Len(t, 2, rows)
	must.Eq(t, "gib_hours", rows[0][5])
	must.Eq(t, "2.000000000", rows[1][5])
	must.StrNotContains(t, body, "\x1b")
}

// A report that cannot be made is an error on the page, which still leads to others.
func TestUsage_Unreadable(t *testing.T) {
	request := siteWith(t, agenttest.Snapshot(), func(context.Context, bill.By, time.Time, time.Time) (*bill.Report, error) {
		return nil, errors.New("the database " + agenttest.Hostile)
	})
	status, body := request("/usage")
	must.Eq(t, http.StatusInternalServerError, status)
	must.StrContains(t, body, "the database ")
	must.StrNotContains(t, body, "<script>")
}

// Where nothing is accounted, no page leads to usage.
func TestUsage_Absent(t *testing.T) {
	status, body := siteWith(t, agenttest.Snapshot(), nil)("/")
	must.Eq(t, http.StatusOK, status)
	must.StrNotContains(t, body, "/usage")
	status, _ = siteWith(t, agenttest.Snapshot(), nil)("/usage")
	must.Eq(t, http.StatusNotFound, status)
}
