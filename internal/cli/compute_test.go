package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/governor"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/cli/private"
)

// reserveGoverned makes a claim on two slices with a fifth of the GPU's time.
func (n *statusNode) reserveGoverned(t *testing.T) *claim.Claim {
	t.Helper()
	g := nvmltest.H200(0)
	c, _, err := n.ledger.Reserve(t.Context(), claim.Request{
		GPU:    claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, ContextBytes: testContextBytes},
		Slices: []string{g.UUID + "/slice-000", g.UUID + "/slice-001"}, LimitBytes: 2 << 30, Owner: claim.OwnerNomad,
		Compute: &claim.Compute{Share: 200, Max: 1000, Class: claim.ClassNormal},
	})
	must.NoError(t, err)
	return c
}

func TestClaimSet(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	c := n.reserveGoverned(t)
	n.bind(t, c, "alloc-1")
	code, out, stderr := n.claim("set", c.ID, "--share", "40", "--max", "60%", "--priority", "high")
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.StrContains(t, out, "Claim "+c.ID+" has share 40%, at most 60%, priority high of GPU 0 ("+c.GPU.UUID+") now; it had share 20%.")
	code, _, stderr = n.claim("set", c.ID, "--max", "100")
	must.Eq(t, 0, code, must.Sprint(stderr))
	claims, _, err := n.ledger.List(t.Context())
	must.NoError(t, err)
	must.Eq(t, &claim.Compute{Share: 400, Max: 1000, Class: claim.ClassHigh}, claims[0].Compute)
}

func TestClaimSet_Refuses(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	c := n.reserveGoverned(t)
	other := n.reserve(t, nvmltest.H200(0), 2, 3)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nothing":         {[]string{c.ID}, "state what to change: --share, --max or --priority"},
		"no percent":      {[]string{c.ID, "--share", "half"}, `--share must be a number of percent from 0.1 to 100 with at most one decimal place, got "half"`},
		"an empty share":  {[]string{c.ID, "--share=", "--max", "50"}, `invalid argument "" for "--share" flag: it is empty; state a value, or leave the flag out`},
		"an empty class":  {[]string{c.ID, "--share", "40", "--priority", ""}, `for "--priority" flag: it is empty`},
		"too much":        {[]string{c.ID, "--max", "101"}, "--max must be a number of percent"},
		"no class":        {[]string{c.ID, "--priority", "urgent"}, `--priority: "urgent" is no priority; there are high, normal and best-effort`},
		"below the share": {[]string{c.ID, "--max", "10"}, "--max: the ceiling, 10%, is less than the claim's share, 20%; state --share, too"},
		"a contradiction": {[]string{c.ID, "--share", "60", "--max", "50"}, "--share: the share, 60%, is more than the ceiling max, 50%"},
		"nobody's":        {[]string{"deadbeef", "--share", "40"}, `claim "deadbeef"`},
		"a path":          {[]string{"../x", "--share", "40"}, `claim "../x"`},
		"not governed":    {[]string{other.ID, "--share", "40"}, `compute = "shares"`},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, stderr := n.claim(append([]string{"set"}, tc.args...)...)
			must.NotEq(t, 0, code)
			must.Eq(t, "", out)
			must.StrContains(t, stderr, tc.want)
		})
	}
}

func TestStatus_Turns(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	c := n.reserveGoverned(t)
	_, text, _ := n.status()
	must.StrNotContains(t, text, "governor") // the claim does not compute yet
	n.bind(t, c, "alloc-1")
	_, text, _ = n.status()
	must.StrContains(t, text, "no governor has run since this node was booted")
	must.True(t, words(text, c.ID, "0", "20%", "100%", "normal", "-", "-"), must.Sprint(text))

	said := status.Status{Written: time.Now().Add(-time.Minute), Claims: map[string]status.Claim{c.ID: {
		GPUSeconds: 1.5, RecentPart: 0.25, WaitingSeconds: 2, Joined: []status.Process{{PID: 1, Name: "a"}},
		NotJoined: []status.Process{{PID: 4711, Name: "b"}},
	}}}
	must.NoError(t, status.Write(n.runDir, said))
	_, text, _ = n.status()
	must.StrContains(t, text, "no governor has run since "+said.Written.Format(time.RFC3339))
	said.Written = time.Now().Add(time.Hour) // however slow the test is
	of := said.Claims[c.ID]
	of.Bypass = layout.BypassCharged
	said.Claims[c.ID] = of
	must.NoError(t, status.Write(n.runDir, said))
	_, text, _ = n.status()
	must.True(t, words(text, c.ID, "20%", "25.0%", "1.5 s", "2.0 s", "0", "1 of 2 (!)"), must.Sprint(text))
	must.StrContains(t, text, `claim `+c.ID+`: its share does not hold for processes that have not joined: "b" (4711); it is charged for the time that they take`)
	r := n.statusJSON(t, 0)
	must.Eq(t, 0.25, r.Claims[0].Turns.RecentPart)
	must.Eq(t, 200, r.Claims[0].Compute.Share)
	code, text, _ := n.claim("list")
	must.Eq(t, 0, code)
	must.True(t, words(text, c.ID, "20%", "25.0%"), must.Sprint(text))
}

func TestRun_Share(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has shares")
	}
	tr := newTrial(t)
	script := `cat "$TRANCHE_REGIONS"/*/claim.json; readlink "${LD_PRELOAD%%/lib/*}"/lib/libcuda.so.1 "${LD_PRELOAD%%/lib/*}"/lib/libnvidia-ml.so.1`
	_, _, stderr := tr.run("--memory", "1GiB", "--share", "30", "--", "sh", "-c", script)
	must.StrContains(t, stderr, "no governor runs on this node")

	governorPatience = time.Millisecond
	t.Cleanup(func() { governorPatience = status.StaleAfter })
	must.NoError(t, status.Write(tr.runDir, status.Status{Written: time.Now().Add(time.Hour)})) // and no governor
	code, out, stderr := tr.run("--memory", "1GiB", "--share", "30", "--", "sh", "-c", script)
	must.Eq(t, exitOwnFailure, code)
	must.Eq(t, "", out)
	must.StrContains(t, stderr, "the governor has not made the claim's socket within 1ms: context deadline exceeded; its log says why")
	must.SliceEmpty(t, tr.privateDirs(t))

	governorPatience = time.Minute
	tr.govern(t)
	script = `test -S "$(echo "$TRANCHE_REGIONS"/*/governor)" && ` + script
	code, out, stderr = tr.run("--memory", "1GiB", "--share", "30", "--max", "50", "--", "sh", "-c", script)
	must.Eq(t, 0, code, must.Sprint(stderr))
	record, links, _ := strings.Cut(out, "\n")
	var c claim.Claim
	must.NoError(t, json.Unmarshal([]byte(record), &c))
	must.Eq(t, &claim.Compute{Share: 300, Max: 500, Class: claim.ClassNormal}, c.Compute)
	must.Eq(t, nvmltest.H200(0).UUID, c.GPU.UUID)
	library, rest, _ := strings.Cut(strings.TrimSpace(links), "\n")
	must.Eq(t, "governed/libcuda.so.1", filepath.Base(filepath.Dir(library))+"/"+filepath.Base(library))
	must.Eq(t, filepath.Dir(filepath.Dir(library)), filepath.Dir(rest))

	// Without a share it is worth its memory, and a ceiling lowers that.
	code, out, stderr = tr.run("--memory", "14GiB", "--priority", "best-effort", "--", "sh", "-c", script)
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.StrContains(t, out, `"compute":{"share":99,"max":1000,"class":"best-effort"}`)
	code, out, _ = tr.run("--memory", "1GiB", "--", "sh", "-c", `ls "$TRANCHE_REGIONS"/*`)
	must.Eq(t, 0, code)
	must.StrNotContains(t, out, runs.RecordFile)

	_, _, stderr = tr.run("--memory", "1GiB", "--share", "30", "--shadow-dir", shadowsWithoutGoverned(t, tr), "--", "true")
	must.StrContains(t, stderr, "no shadow library ")
	must.StrContains(t, stderr, "/governed/libcuda.so.1")
	_, _, stderr = tr.run("--memory", "1GiB", "--share", "0", "--", "true")
	must.StrContains(t, stderr, "--share must be a number of percent")
}

// govern runs a governor until the test has ended.
func (tr *trial) govern(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	o := governor.Options{StateDir: t.TempDir(), RunDir: tr.runDir, Logger: hclog.NewNullLogger(), Ready: func() { close(ready) }}
	go func() { ended <- governor.Run(ctx, o) }()
	t.Cleanup(func() { cancel(); must.NoError(t, <-ended) })
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the governor has ended: %v", err)
	}
}

func shadowsWithoutGoverned(t *testing.T, tr *trial) string {
	t.Helper()
	dir := t.TempDir()
	for _, soname := range private.Sonames {
		must.NoError(t, os.Symlink(filepath.Join(tr.shadowDir, soname), filepath.Join(dir, soname)))
	}
	return dir
}
