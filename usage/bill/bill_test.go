package bill

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/usagetest"
)

var (
	november   = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	wholeMonth = usage.Query{From: november, To: november.AddDate(0, 1, 0)}
)

var (
	first  = usage.GPUName{UUID: "GPU-a", Model: "NVIDIA H200", Index: 0}
	second = usage.GPUName{UUID: "GPU-b", Model: "NVIDIA H200", Index: 1}
)

func line(id string, hour int, w claim.Workload, gpu usage.GPUName, gibs uint64, share, reserved int64) usage.Line {
	return usage.Line{
		Hour: november.Add(time.Duration(hour) * time.Hour), ClaimID: id, Created: november, Owner: claim.OwnerNomad, Workload: w, GPU: gpu,
		Mode: claim.ModeSlice, Bytes: gibs * gib, Share: share, ReservedMillis: reserved,
	}
}

func lines() []usage.Line {
	web := claim.Workload{Namespace: "default", Job: "web", Group: "g", Task: "t", Allocation: "1234-5678", Verified: true}
	night := claim.Workload{Namespace: "default", Job: "night/periodic-1", ParentJob: "night", Verified: true}
	all := []usage.Line{
		line("aaaaaaaa", 0, web, first, 8, 100_000_000, hourMillis),
		line("aaaaaaaa", 1, web, first, 8, 100_000_000, hourMillis/3),
		line("aaaaaaaa", 1, web, first, 16, 200_000_000, hourMillis/3),
		line("bbbbbbbb", 1, night, second, 1, 10_000_000, hourMillis/2),
		line("cccccccc", 2, claim.Workload{Namespace: "evil", Job: "=cmd|' /C calc'!A1\n\x1b[2J"}, second, 1, usage.WholeShare, 1),
		line("dddddddd", 2, claim.Workload{ContainerName: "+web"}, second, 3, -1, hourMillis),
		line("eeeeeeee", 3, claim.Workload{}, first, 2, 20_000_000, hourMillis),
	}
	all[5].Node = "gpu-2" // whose GPU has the same UUID, as simulated ones do
	all[0].ObservedMillis, all[0].UsedGiBMillis, all[0].PeakBytes = hourMillis, 2*hourMillis, 7*gib
	return all
}

func store(t *testing.T) *usage.Store {
	t.Helper()
	return usagetest.Fill(t, t.TempDir(), lines(), []usage.Gap{
		{From: november.Add(time.Hour), To: november.Add(2 * time.Hour), Reason: "the node was restarted"},
		{From: november.AddDate(0, 1, 0), To: november.AddDate(0, 1, 1), Reason: "later"},
	})
}

func prices(t *testing.T, text string) Prices {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	c, err := LoadConfig(path)
	must.NoError(t, err)
	return c.Prices
}

const bothPrices = "driver_root = '/'\n[prices]\ncurrency = 'EUR'\ngib_hour = 0.1\ngpu_hour = 3\n"

// golden compares a text with a file; TRANCHE_GOLDEN=1 writes that.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("TRANCHE_GOLDEN") == "1" {
		must.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, string(want), string(got))
}

func TestReport_Golden(t *testing.T) {
	s := store(t)
	for name, tc := range map[string]struct {
		by     By
		prices string
		write  func(*Report, io.Writer) error
	}{
		"job.txt":       {ByJob, bothPrices, (*Report).Table},
		"namespace.txt": {ByNamespace, "[prices]\ncurrency = 'USD'\ngib_hour = 0.25\n", (*Report).Table},
		"gpu.txt":       {ByGPU, "", (*Report).Table},
		"job.csv":       {ByJob, bothPrices, (*Report).CSV},
		"namespace.csv": {ByNamespace, "", (*Report).CSV},
		"gpu.csv":       {ByGPU, "", (*Report).CSV},
		"job.json":      {ByJob, bothPrices, (*Report).JSON},
		"gpu.json":      {ByGPU, "", (*Report).JSON},
		"node.txt":      {ByNode, bothPrices, (*Report).Table},
		"node.csv":      {ByNode, bothPrices, (*Report).CSV},
		"node.json":     {ByNode, "", (*Report).JSON},
	} {
		r, err := Make(t.Context(), s, tc.by, wholeMonth, prices(t, tc.prices))
		must.NoError(t, err)
		var out bytes.Buffer
		must.NoError(t, tc.write(r, &out))
		golden(t, name, out.Bytes())
	}
}

// What was used is a sum of measurements: a part of it has no more digits than a ratio needs.
func TestReport_RoundsUsed(t *testing.T) {
	all := lines()[:1]
	all[0].UsedGiBMillis = 8 * hourMillis / 3.0
	s := usagetest.Fill(t, t.TempDir(), all, nil)
	r, err := Make(t.Context(), s, ByJob, wholeMonth, Prices{})
	must.NoError(t, err)
	var out bytes.Buffer
	must.NoError(t, r.JSON(&out))
	must.StrContains(t, out.String(), `"used_ratio": 0.333333,`)
}

// Only the hours that were asked for count, and sums are exact.
func TestMake_HoursAndSums(t *testing.T) {
	s := store(t)
	p := prices(t, bothPrices)
	r, err := Make(t.Context(), s, ByJob, usage.Query{From: november.Add(time.Hour), To: november.Add(2 * time.Hour)}, p)
	must.NoError(t, err)
	must.Len(t, 2, r.Rows)
	web := r.Rows[1]
	must.Eq(t, "web", web.Job)
	must.Eq(t, "8", web.GiBHours().RatString())
	must.Eq(t, "1/10", web.GPUHours().RatString())
	must.Eq(t, "11/10", web.Cost(p).RatString())
	must.Len(t, 1, r.Gaps)
}

// A report about one node has what others have not.
func TestMake_OneNode(t *testing.T) {
	s := store(t)
	q := wholeMonth
	q.Node = "gpu-2"
	r, err := Make(t.Context(), s, ByJob, q, Prices{})
	must.NoError(t, err)
	must.Len(t, 1, r.Rows)
	must.Eq(t, "+web", r.Rows[0].Container)
	must.SliceEmpty(t, r.Gaps)
	nodes, err := s.Nodes(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{"gpu-1", "gpu-2"}, nodes)
}

// No cell that others named begins as a formula does, and no control character gets through.
func TestWrite_HostileNames(t *testing.T) {
	s := usagetest.Fill(t, t.TempDir(), lines(), []usage.Gap{{From: november, To: november, Node: "=\x1b[2J", Reason: "\x1b[2J"}})
	p := prices(t, strings.Replace(bothPrices, "gib_hour", "account = '=1+1'\nprovider = '@x'\ngib_hour", 1))
	r, err := Make(t.Context(), s, ByJob, wholeMonth, p)
	must.NoError(t, err)
	for name, write := range map[string]func(io.Writer) error{
		"table": r.Table, "csv": r.CSV, "json": r.JSON,
		"focus": func(w io.Writer) error { return Focus(t.Context(), s, wholeMonth, p, w) },
	} {
		var out bytes.Buffer
		must.NoError(t, write(&out))
		must.StrNotContains(t, out.String(), "\x1b", must.Sprint(name))
		if name == "table" || name == "json" {
			continue
		}
		rows, err := csv.NewReader(&out).ReadAll()
		must.NoError(t, err)
		formulas := 0
		for _, row := range rows {
			for _, text := range row {
				must.False(t, text != "" && strings.ContainsAny(text[:1], "=+-@\t\r\n"), must.Sprint(name, text))
				if strings.HasPrefix(text, "'=") || strings.HasPrefix(text, "'+") || strings.HasPrefix(text, "'@") {
					formulas++
				}
			}
		}
		must.Greater(t, 1, formulas)
	}
}

// Each row of FOCUS has the hour of a claim and one price, and the costs sum up to those of the report.
func TestFocus(t *testing.T) {
	s := store(t)
	p := prices(t, bothPrices)
	var out bytes.Buffer
	must.NoError(t, Focus(t.Context(), s, wholeMonth, p, &out))
	golden(t, "focus.csv", out.Bytes())
	rows, err := csv.NewReader(&out).ReadAll()
	must.NoError(t, err)
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	for _, mandatory := range strings.Fields(`BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd
		BillingPeriodStart ChargeCategory ChargeClass ChargeDescription ChargePeriodEnd ChargePeriodStart ContractedCost EffectiveCost
		InvoiceIssuerName ListCost PricingQuantity PricingUnit ProviderName PublisherName ServiceCategory ServiceName`) {
		must.MapContainsKey(t, column, mandatory)
	}
	must.Len(t, 1+2*len(lines())-1, rows) // a share that is not known has no price
	sum := new(big.Rat)
	for _, row := range rows[1:] {
		cost, ok := new(big.Rat).SetString(row[column["BilledCost"]])
		must.True(t, ok)
		sum.Add(sum, cost)
		var tags map[string]string
		must.NoError(t, json.Unmarshal([]byte(row[column["Tags"]]), &tags))
		start, err := time.Parse(time.RFC3339, row[column["ChargePeriodStart"]])
		must.NoError(t, err)
		must.False(t, start.Before(november))
	}
	want := new(big.Rat)
	for _, l := range lines() {
		for _, item := range p.skus(l) {
			want.Add(want, item.quantity.Mul(item.quantity, item.price))
		}
	}
	must.Eq(t, want.FloatString(9), sum.FloatString(9))
	must.ErrorContains(t, Focus(t.Context(), s, wholeMonth, Prices{}, io.Discard), "[prices]")
}

func TestLoadConfig(t *testing.T) {
	c, err := LoadConfig(filepath.Join(t.TempDir(), "absent.toml"))
	must.NoError(t, err)
	must.Eq(t, 400*24*time.Hour, c.Keep)
	must.False(t, c.Prices.Known())
	must.Eq(t, "1/10", prices(t, bothPrices).GiBHour.RatString())
	for text, want := range map[string]string{
		"[prices]\ncurrency = 'EUR'":                   "prices.gib_hour",
		"[prices]\ngib_hour = 1":                       "prices.currency",
		"[prices]\ncurrency = 'euro'\ngib_hour = 1":    "prices.currency",
		"[prices]\ncurrency = 'EUR'\ngib_hour = -1":    "prices.gib_hour must be a number from 0 to 1000000000, such as 0.05, got -1",
		"[prices]\ncurrency = 'EUR'\ngib_hour = 1e300": "prices.gib_hour must be a number from 0 to 1000000000",
		"[prices]\ncurrency = 'EUR'\ngpu_hour = '1'":   "prices.gpu_hour",
		"[prices]\ncurrency = 'EUR'\ngpu_hour = inf":   "prices.gpu_hour",
		"[prices]\ncurrency = 'EUR'\nslice_hour = 1":   "prices.slice_hour",
		"[usage]\nkeep_days = 0":                       "usage.keep_days",
		"[usage]\nkeep_days = '4'":                     `got "4"`,
		"[usage]\nkeep = 0":                            "usage.keep",
		"[usage]\ndatabase = 5432":                     "usage.database must be a text",
		"[usage]\ndatabase = ''":                       "usage.database must be the URL",
		"[usage]\ndatabase = 'mysql://db/tranche'":     "usage.database must be the URL",
		"[usage]\ndatabase = 'host=db password=x'":     "usage.database must be the URL",
		"[usage]\nnode = 7":                            "usage.node",
		"prices = 7":                                   "prices",
		"[Prices]\ngib_hour = 1":                       "there is no table [Prices]; write [prices]",
		"[prices]\naccount = 7":                        "prices.account",
		"[prices":                                      "config.toml",
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := LoadConfig(path)
		must.ErrorContains(t, err, want, must.Sprint(text))
	}
}
