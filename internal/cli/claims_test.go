package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/cli/report"
)

// ask makes a claim as a container does that asks by itself.
func (n *statusNode) ask(t *testing.T, g nvml.GPU, limitBytes uint64) *claim.Claim {
	t.Helper()
	c, err := n.ledger.ReserveFit(t.Context(), claim.FitRequest{
		Candidates: []claim.Candidate{{GPU: claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name}, Slices: 140}},
		SliceBytes: 1 << 30, LimitBytes: limitBytes, Owner: claim.OwnerExternal,
	})
	must.NoError(t, err)
	return c
}

func (n *statusNode) claim(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	n.stdout, n.stderr = &out, &errs
	code = n.main(append([]string{"claim", args[0], "--state-dir", n.stateDir, "--run-dir", n.runDir}, args[1:]...))
	return code, out.String(), errs.String()
}

// end ends the container of a claim.
func (n *statusNode) end(t *testing.T, c *claim.Claim, id string) {
	t.Helper()
	init := n.bind(t, c, id)
	must.NoError(t, init.Process.Kill())
	_ = init.Wait()
}

// age makes a claim older.
func (n *statusNode) age(t *testing.T, c *claim.Claim, by time.Duration) {
	t.Helper()
	path := filepath.Join(n.stateDir, "claims", c.ID+".json")
	var record map[string]any
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(text, &record))
	record["created"] = c.Created.Add(-by)
	text, err = json.Marshal(record)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, text, 0o600))
}

func TestClaimList(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	nomads := n.reserve(t, g, 0, 7)
	n.bind(t, nomads, "alloc-1")
	asked := n.ask(t, g, 5<<29)
	n.bind(t, asked, "web")
	starting := n.ask(t, g, 1<<30)
	ended, late := n.ask(t, g, 1<<30), n.ask(t, g, 3<<29)
	n.end(t, ended, "job")
	n.age(t, late, time.Hour)

	code, out, stderr := n.claim("list", "--json")
	must.Eq(t, 0, code, must.Sprint(stderr))
	var list claimList
	must.NoError(t, json.Unmarshal([]byte(out), &list))
	states := map[string]string{}
	for _, c := range list.Claims {
		states[c.ID] = string(c.State) + " " + c.Owner
	}
	must.Eq(t, map[string]string{
		nomads.ID: "running nomad", asked.ID: "running external", starting.ID: "reserved external",
		ended.ID: "ended external", late.ID: "ended external",
	}, states)
	must.StrContains(t, out, `"slice_bytes": 1073741824`)
	must.StrContains(t, out, `"problems": []`)

	hostile := claim.Workload{Namespace: "ml", Job: "a\nb\x1b[2J", Group: "g", Task: "t", Allocation: "3f2a91b0-1", Verified: true}
	must.NoError(t, n.ledger.NoteWorkload(t.Context(), nomads.ID, hostile))
	must.NoError(t, n.ledger.NoteWorkload(t.Context(), asked.ID, claim.Workload{ContainerName: "web"}))
	must.Eq(t, hostile, *n.statusJSON(t, 0).Claims[0].Workload)

	code, out, _ = n.claim("list")
	must.Eq(t, 0, code)
	must.True(t, words(out, nomads.ID, `ml/a\nb\x1b[2J/g/t`, "3f2a91b0", "alloc-1 (runc)"), must.Sprint(out))
	must.True(t, words(out, asked.ID, "container web", "web (runc)"), must.Sprint(out))
	must.True(t, words(out, nomads.ID, "0-7", "8192 MiB", "running", "nomad", "alloc-1 (runc)"), must.Sprint(out))
	must.True(t, words(out, asked.ID, "8-10", "2560 MiB", "running", "external", "web (runc)"), must.Sprint(out))
	must.Len(t, 5, list.Claims, must.Sprint("to look changes nothing"))

	// `tranche status` counts whole slices, whatever their claim's limit, and not those that nobody comes back for.
	r := n.statusJSON(t, 0)
	must.Eq(t, report.Slices{SliceBytes: 1 << 30, Total: 140, Taken: 12, Free: 128}, r.GPUs[0].Slices)
	_, text, _ := n.status()
	must.True(t, words(text, asked.ID, "running", "external", "web (runc)"), must.Sprint(text))
}

func TestClaimList_Empty(t *testing.T) {
	n := newNode(t, nvmltest.New())
	_, out, _ := n.claim("list")
	must.Eq(t, "No claims.\n", out)
	_, out, _ = n.claim("list", "--json")
	must.StrContains(t, out, `"claims": []`)
	must.NoError(t, os.WriteFile(filepath.Join(n.stateDir, "claims"), nil, 0o600))
	code, _, stderr := n.claim("list")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, n.stateDir)
}

func TestClaimRelease(t *testing.T) {
	g := nvmltest.H200(0)
	for name, tc := range map[string]struct {
		make func(n *statusNode) *claim.Claim
		// refused is why it is not released without --force; empty if it is.
		refused string
		says    []string
	}{
		"a container's that lives": {
			make: func(n *statusNode) *claim.Claim {
				c := n.ask(t, g, 2<<30)
				n.bind(t, c, "web")
				return c
			},
			refused: "container web (runc) has it and lives",
			says:    []string{"slices 0-1 of GPU 0", "Container web (runc) goes on", "Stop it soon"},
		},
		"a task's that lives": {
			make: func(n *statusNode) *claim.Claim {
				c := n.reserve(t, g, 3, 3)
				n.bind(t, c, "alloc-1")
				return c
			},
			refused: "container alloc-1 (runc) has it and lives",
			says:    []string{"slices 3 of GPU 0", "goes on", "stop the job and run it again"},
		},
		"a task's that is being started": {
			make:    func(n *statusNode) *claim.Claim { return n.reserve(t, g, 3, 3) },
			refused: "Nomad has reserved it",
			says:    []string{"will not start"},
		},
		"a container's that is being started": {
			make:    func(n *statusNode) *claim.Claim { return n.ask(t, g, 1<<30) },
			refused: "a container is being started with it",
			says:    []string{"will not start"},
		},
		"a task's that may come back": {
			make: func(n *statusNode) *claim.Claim {
				c := n.reserve(t, g, 3, 4)
				n.end(t, c, "alloc-1")
				return c
			},
			says: []string{"slices 3-4 of GPU 0", "If Nomad starts its task again", "stop the job and run it again"},
		},
		"a task's whose start failed": {
			make: func(n *statusNode) *claim.Claim {
				c, token, err := n.ledger.Reserve(t.Context(), claim.Request{
					GPU: claim.GPU{UUID: g.UUID, Name: g.Name}, Slices: []string{claim.SliceName(g.UUID, 5)}, LimitBytes: 1 << 30,
					Owner: claim.OwnerNomad,
				})
				must.NoError(t, err)
				must.NoError(t, n.ledger.GiveUp(t.Context(), map[string]string{token.EnvName(): token.Reveal()}))
				return c
			},
			says: []string{"slices 5 of GPU 0", "If Nomad starts its task again"},
		},
		"a container's that is gone": {
			make: func(n *statusNode) *claim.Claim {
				c := n.ask(t, g, 1<<30)
				n.end(t, c, "web")
				return c
			},
			says: []string{"slices 0 of GPU 0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nvmltest.New(g))
			c := tc.make(n)
			left := func() int {
				claims, _, err := n.ledger.List(t.Context())
				must.NoError(t, err)
				return len(claims)
			}
			args := []string{"release", c.ID}
			if tc.refused != "" {
				code, out, stderr := n.claim(args...)
				must.Eq(t, exitFailure, code)
				must.Eq(t, "", out)
				must.StrContains(t, stderr, tc.refused)
				must.StrContains(t, stderr, "--force")
				must.Eq(t, 1, left())
				args = append(args, "--force")
			}
			code, out, stderr := n.claim(args...)
			must.Eq(t, 0, code, must.Sprint(stderr))
			must.StrContains(t, out, "Released claim "+c.ID)
			for _, says := range tc.says {
				must.StrContains(t, out, says)
			}
			must.Eq(t, 0, left())
		})
	}
}

func TestClaimRelease_Several(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	gone := n.ask(t, g, 1<<30)
	n.end(t, gone, "web")
	code, out, stderr := n.claim("release", "0badcafe", "../../etc/passwd", gone.ID)
	must.Eq(t, exitFailure, code)
	must.StrContains(t, out, "Released claim "+gone.ID)
	must.StrContains(t, stderr, `releasing claim "0badcafe": the ledger has no such claim`)
	must.StrContains(t, stderr, `"../../etc/passwd"`)
	must.Eq(t, 2, strings.Count(stderr, "no such claim"))
	code, _, _ = n.claim("release")
	must.Eq(t, exitFailure, code)
}
