package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/bill"
	"github.com/tranche-gpu/tranche/usage/postgrestest"
)

func (n *statusNode) usage(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	n.stdout, n.stderr = &out, &errs
	code = n.main(append([]string{"usage", "--state-dir", n.stateDir, "--run-dir", n.runDir}, args...))
	return code, out.String(), errs.String()
}

// startPlugin makes the ledger, as a device plugin does.
func (n *statusNode) startPlugin(t *testing.T) {
	t.Helper()
	_, err := n.ledger.WatchDir()
	must.NoError(t, err)
}

// Without an agent and without a device plugin, the command itself accounts what the ledger and its journal have.
func TestUsage(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	n.startPlugin(t)
	code, out, stderr := n.usage()
	must.Eq(t, 0, code)
	must.StrContains(t, out, "No claims from ")
	must.StrContains(t, stderr, "tranche agent")

	c := n.reserve(t, g, 0, 6)
	must.NoError(t, n.ledger.NoteWorkload(t.Context(), c.ID, claim.Workload{Namespace: "team", Job: "train", Task: "t", Verified: true}))
	n.end(t, c, "alloc-1")
	for time.Since(c.Created) < 2*time.Millisecond { // which is what usage is accounted in
		runtime.Gosched()
	}
	must.NoError(t, n.ledger.Release(t.Context(), c.ID, "alloc-1"))
	claims, _, err := n.ledger.List(t.Context())
	must.NoError(t, err)
	lasted := claims[0].Released.UnixMilli() - claims[0].Created.UnixMilli()

	code, out, stderr = n.usage("--format", "json")
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.Eq(t, "", stderr)
	var r struct {
		Rows []struct {
			Namespace, Job  string
			ReservedSeconds float64  `json:"reserved_seconds"`
			GPUHours        *float64 `json:"gpu_hours"`
		}
	}
	must.NoError(t, json.Unmarshal([]byte(out), &r), must.Sprint(out))
	must.Len(t, 1, r.Rows)
	must.Eq(t, "team train", r.Rows[0].Namespace+" "+r.Rows[0].Job)
	must.Eq(t, float64(lasted)/1000, r.Rows[0].ReservedSeconds)
	must.NotNil(t, r.Rows[0].GPUHours, must.Sprint("NVML says how much memory the GPU has"))

	// Prices are read from the file that TRANCHE_CONFIG names.
	config := filepath.Join(t.TempDir(), "config.toml")
	must.NoError(t, os.WriteFile(config, []byte("[prices]\ncurrency = 'EUR'\ngpu_hour = 3600000\n"), 0o600))
	n.environ = []string{"TRANCHE_CONFIG=" + config}
	_, out, _ = n.usage("--by", "namespace")
	must.True(t, words(out, "NAMESPACE", "GPU-HOURS", "COST (EUR)"), must.Sprint(out))
	must.True(t, words(out, "team", "0.000"), must.Sprint(out))
	_, out, _ = n.usage("--format", "focus")
	must.StrContains(t, out, "BilledCost,")
	must.StrContains(t, out, "GPU-Hours")
}

// A shared database has what all nodes had, for a node and for a machine without any claims.
func TestUsage_SharedDatabase(t *testing.T) {
	database := postgrestest.Start(t).Create(t, usage.PostgresSchema())
	config := filepath.Join(t.TempDir(), "config.toml")
	setConfig := func(n *statusNode, name string) {
		must.NoError(t, os.WriteFile(config, []byte("[usage]\ndatabase = '"+database+"'\nnode = '"+name+"'\n"), 0o600))
		n.environ = []string{"TRANCHE_CONFIG=" + config}
	}
	var n *statusNode
	for _, name := range []string{"gpu-1", "gpu-2"} {
		g := nvmltest.H200(0)
		n = newNode(t, nvmltest.New(g))
		n.startPlugin(t)
		setConfig(n, name)
		code, _, stderr := n.usage()
		must.Eq(t, 0, code, must.Sprint(stderr))
		c := n.reserve(t, g, 0, 6)
		must.NoError(t, n.ledger.NoteWorkload(t.Context(), c.ID, claim.Workload{Namespace: "team", Job: "job-of-" + name, Verified: true}))
		n.end(t, c, "alloc-1")
		must.NoError(t, n.ledger.Release(t.Context(), c.ID, "alloc-1"))
		code, _, stderr = n.usage()
		must.Eq(t, 0, code, must.Sprint(stderr))
	}
	r := n.agentsReport(t)
	must.Len(t, 1, r.Rows, must.Sprint("an agent shows its own node"))
	must.Eq(t, "job-of-gpu-2", r.Rows[0].Job)

	database = strings.Replace(database, postgrestest.User+"@", postgrestest.Reader+"@", 1)
	elsewhere := newNode(t, nvmltest.New())
	elsewhere.stateDir = filepath.Join(t.TempDir(), "absent")
	setConfig(elsewhere, "desk")
	code, out, stderr := elsewhere.usage()
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.StrContains(t, out, "job-of-gpu-1")
	must.StrContains(t, out, "job-of-gpu-2")
	_, out, _ = elsewhere.usage("--node", "gpu-2")
	must.StrNotContains(t, out, "job-of-gpu-1")
	must.StrContains(t, out, "job-of-gpu-2")
	_, out, _ = elsewhere.usage("--by", "node", "--format", "csv")
	must.StrHasPrefix(t, "node,reserved_seconds,", out)
	must.StrNotContains(t, out, "desk")
	code, _, stderr = elsewhere.usage("--node", "gpu-3")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, `--node: nothing was collected on "gpu-3"; there are gpu-1, gpu-2`)
	must.FileNotExists(t, elsewhere.stateDir)

	database = strings.Replace(database, "@", ":secret@", 1)
	setConfig(elsewhere, "desk")
	code, out, stderr = elsewhere.usage()
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, "usage.database must not have a password")
	must.StrNotContains(t, out+stderr, "secret")
}

// startAccounting starts what an agent accounts. The caller ends it.
func (n *statusNode) startAccounting(t *testing.T) (a *accounting, end func()) {
	t.Helper()
	p := place{stateDir: n.stateDir, runDir: n.runDir}
	m, err := n.monitor(p, "1GiB", hclog.NewNullLogger())
	must.NoError(t, err)
	a, err = n.accounting(p, m, hclog.NewNullLogger())
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { a.run(ctx); close(done) }()
	return a, func() { cancel(); <-done; a.close() }
}

// agentsReport returns what an agent shows of this month's jobs.
func (n *statusNode) agentsReport(t *testing.T) *bill.Report {
	t.Helper()
	a, end := n.startAccounting(t)
	defer end()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return a.totals() != nil }), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond)))
	r, err := a.report(t.Context(), bill.ByJob, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	must.NoError(t, err)
	return r
}

// The statements that --schema prints need no node.
func TestUsage_Schema(t *testing.T) {
	n := newNode(t, nvmltest.New())
	n.stateDir = "/no/such/dir"
	code, out, _ := n.usage("--schema")
	must.Eq(t, 0, code)
	must.StrContains(t, out, "CREATE TABLE node (")
}

// A wrong directory is not made one of usage.
func TestUsage_WrongStateDir(t *testing.T) {
	n := newNode(t, nvmltest.New())
	for _, dir := range []string{n.stateDir, filepath.Join(n.stateDir, "missing")} {
		n.stateDir = dir
		code, out, stderr := n.usage()
		must.Eq(t, exitFailure, code)
		must.Eq(t, "", out)
		must.StrContains(t, stderr, "--state-dir: no claim was ever made in "+dir)
		entries, _ := os.ReadDir(dir)
		must.SliceEmpty(t, entries)
	}
	n.stateDir = filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(n.stateDir, nil, 0o600))
	_, _, stderr := n.usage()
	must.StrContains(t, stderr, "not a directory")
	n.stateDir = t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(n.stateDir, "usage.db"), 0o755))
	_, _, stderr = n.usage()
	must.StrContains(t, stderr, "the database is a file: remove the directory")
}

func TestUsage_WrongOptions(t *testing.T) {
	n := newNode(t, nvmltest.New())
	n.startPlugin(t)
	for _, tc := range []struct {
		want string
		args []string
	}{
		{`--by must be job, namespace, gpu or node, got "user"`, []string{"--by", "user"}},
		{`--format must be table, csv, json or focus, got "xml"`, []string{"--format", "xml"}},
		{"--by does not go with --format focus", []string{"--by", "gpu", "--format", "focus"}},
		{"[prices]", []string{"--format", "focus"}},
		{`--from must be a date such as 2026-11-01 or a time such as 2026-11-01T15:00, got "yesterday"`, []string{"--from", "yesterday"}},
		{`for "--from" flag: it is empty`, []string{"--from", ""}},
		{`for "--to" flag: it is empty`, []string{"--to="}},
		{`--to must be a date`, []string{"--to", "2026-02-30"}},
		{"--to must be a whole hour", []string{"--to", "2026-11-01T15:30"}},
		{"state --from, too", []string{"--to", "2020-01-01"}},
		{"--from must be before --to", []string{"--from", "2026-11-02", "--to", "2026-11-02"}},
		{"the state directory has to be an absolute path", []string{"--state-dir", "relative"}},
	} {
		code, out, stderr := n.usage(tc.args...)
		must.Eq(t, exitFailure, code)
		must.Eq(t, "", out)
		must.StrContains(t, stderr, tc.want)
	}
}

func TestUsage_Times(t *testing.T) {
	now := time.Date(2026, 11, 26, 14, 20, 0, 0, time.UTC)
	for _, tc := range []struct{ from, to, wantFrom, wantTo string }{
		{"", "", "2026-11-01T00:00:00Z", "2026-11-26T15:00:00Z"},
		{"2026-10-31", "2026-11-01T07:00", "2026-10-31T00:00:00Z", "2026-11-01T07:00:00Z"},
		{"2026-10-31T05:00+05:00", "2026-10-31 01:00", "2026-10-31T00:00:00Z", "2026-10-31T01:00:00Z"},
	} {
		from, to, err := usageOptions{from: stated(tc.from), to: stated(tc.to)}.times(now)
		must.NoError(t, err)
		must.Eq(t, tc.wantFrom, from.Format(time.RFC3339))
		must.Eq(t, tc.wantTo, to.Format(time.RFC3339))
	}
}

// What was collected is reported also where the rest cannot be, and the exit code says so.
func TestUsage_UnreadableLedger(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	n.startPlugin(t)
	n.usage()
	c := n.reserve(t, g, 0, 6)
	n.end(t, c, "alloc-1")
	n.usage()
	claims := filepath.Join(n.stateDir, "claims")
	must.NoError(t, os.RemoveAll(claims))
	must.NoError(t, os.WriteFile(claims, nil, 0o600))
	code, out, stderr := n.usage()
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, claims)
	must.StrContains(t, out, "total")
}

func TestUsage_ConfigurationThatIsMissing(t *testing.T) {
	n := newNode(t, nvmltest.New())
	n.environ = []string{"TRANCHE_CONFIG=/no/such/config.toml"}
	code, _, stderr := n.usage()
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, "/no/such/config.toml")
	must.StrContains(t, stderr, "TRANCHE_CONFIG")
}

// A database that is not one is left alone, and the error says what to do.
func TestUsage_DamagedDatabase(t *testing.T) {
	n := newNode(t, nvmltest.New())
	path := filepath.Join(n.stateDir, "usage.db")
	content := bytes.Repeat([]byte("no database "), 1000)
	must.NoError(t, os.WriteFile(path, content, 0o600))
	code, _, stderr := n.usage()
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, path)
	must.StrContains(t, stderr, "move it away")
	left, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, content, left)
}

// The agent serves all else while the database cannot be opened.
func TestAccounting_WithoutADatabase(t *testing.T) {
	n := newNode(t, nvmltest.New())
	must.NoError(t, os.Mkdir(filepath.Join(n.stateDir, "usage.db"), 0o700))
	a, end := n.startAccounting(t)
	defer end()
	must.Nil(t, a.totals())
	_, err := a.report(t.Context(), "job", time.Now(), time.Now())
	must.ErrorContains(t, err, "could not be opened")
}

// What the device plugin says counts, except that one of an earlier version does not say of which GPU an instance is a part.
func TestUsage_GPUs(t *testing.T) {
	runDir, bytes := t.TempDir(), uint64(16<<30)
	s := &monitor.Snapshot{GPUs: []monitor.GPU{
		{UUID: "MIG-1", MemoryBytes: &bytes, WholeBytes: 64 << 30}, {UUID: "GPU-1", MemoryBytes: &bytes}, {UUID: "GPU-2"},
	}}
	must.NoError(t, layout.Write(runDir, map[string]layout.GPU{"MIG-1": {MemoryBytes: 15 << 30}, "GPU-3": {MemoryBytes: 8 << 30, Replicas: 2}}))
	must.Eq(t, map[string]usage.GPU{
		"MIG-1": {MemoryBytes: 15 << 30, WholeBytes: 64 << 30}, "GPU-1": {MemoryBytes: bytes}, "GPU-3": {MemoryBytes: 8 << 30, Replicas: 2},
	}, accountedGPUs(s, runDir))
	must.NoError(t, layout.Write(runDir, map[string]layout.GPU{"MIG-1": {MemoryBytes: 15 << 30, WholeBytes: 60 << 30}}))
	must.Eq(t, usage.GPU{MemoryBytes: 15 << 30, WholeBytes: 60 << 30}, accountedGPUs(s, runDir)["MIG-1"])
}
