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
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/cli/report"
)

// reserveIn makes a claim in a mode on a GPU.
func (n *statusNode) reserveIn(t *testing.T, g nvml.GPU, mode claim.Mode, change func(*claim.Request)) *claim.Claim {
	t.Helper()
	req := claim.Request{
		GPU: claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name}, Slices: []string{g.UUID}, LimitBytes: g.MemoryBytes,
		Owner: claim.OwnerNomad, Mode: mode,
	}
	if change != nil {
		change(&req)
	}
	c, _, err := n.ledger.Reserve(t.Context(), req)
	must.NoError(t, err)
	return c
}

func TestStatus_Modes(t *testing.T) {
	gpus := []nvml.GPU{nvmltest.H200(0), nvmltest.H200(1), nvmltest.H200(2), nvmltest.H200(3), nvmltest.H200(4), nvmltest.H200(5)}
	n := newNode(t, nvmltest.New(gpus...))
	must.NoError(t, layout.Write(n.runDir, map[string]layout.GPU{
		gpus[1].UUID: {Mode: claim.ModeMIG, SliceBytes: 4 << 30}, gpus[2].UUID: {Mode: claim.ModeMPS, SliceBytes: 2 << 30},
		gpus[4].UUID: {Mode: claim.ModeTimeslice}, gpus[5].UUID: {Mode: claim.ModeMPS, SliceBytes: 4 << 30},
	}))
	whole := n.reserveIn(t, gpus[0], claim.ModeExclusive, nil)
	n.bind(t, whole, "alloc-1")
	instance := n.reserveIn(t, gpus[1], claim.ModeMIG, func(r *claim.Request) {
		r.GPU.UUID, r.GPU.Name, r.GPU.Index = "MIG-1", "NVIDIA H200 MIG 1g.18gb", 7
		r.MIG = &claim.MIG{GPUUUID: gpus[1].UUID, GPUIndex: 1, Profile: "1g.18gb", Start: 0, Size: 1}
		r.Slices, r.SliceBytes, r.LimitBytes = []string{claim.SliceName(gpus[1].UUID, 3)}, 4<<30, 4<<30
	})
	shared := n.reserveIn(t, gpus[2], claim.ModeMPS, func(r *claim.Request) {
		r.Slices, r.SliceBytes, r.LimitBytes = []string{claim.SliceName(gpus[2].UUID, 5)}, 2<<30, 2<<30
		r.MPS = &claim.MPS{Percentage: 2}
	})

	r := n.statusJSON(t, 0)
	must.Len(t, 6, r.GPUs, must.Sprint("an instance is no GPU that NVML forgot"))
	for i, want := range []report.GPU{
		{Mode: claim.ModeExclusive, Slices: report.Slices{Taken: 1}},
		{Mode: claim.ModeMIG, Slices: report.Slices{SliceBytes: 4 << 30, Total: 35, Taken: 1, Free: 34}},
		{Mode: claim.ModeMPS, Slices: report.Slices{SliceBytes: 2 << 30, Total: 70, Taken: 1, Free: 69}},
		{Mode: claim.ModeSlice, Slices: report.Slices{SliceBytes: 1 << 30, Total: 140, Free: 140}},
		{Mode: claim.ModeTimeslice},
		{Mode: claim.ModeMPS, Slices: report.Slices{SliceBytes: 4 << 30, Total: 35, Free: 35}},
	} {
		must.Eq(t, want.Mode, r.GPUs[i].Mode)
		must.Eq(t, want.Slices, r.GPUs[i].Slices)
	}
	must.Nil(t, r.Claims[0].Usage, must.Sprint("nobody counts what it uses"))
	must.Eq(t, "", r.Claims[0].UsageError)

	_, text, _ := n.status()
	must.True(t, words(text, "0", "NVIDIA H200", gpus[0].UUID, "exclusive", "1", "-"), must.Sprint(text))
	must.True(t, words(text, whole.ID, "0", "exclusive", gpus[0].UUID, "none", "-", "-", "-", "-", "running"), must.Sprint(text))
	must.True(t, words(text, instance.ID, "1", "mig", "3", "4096 MiB", "0 MiB", "reserved"), must.Sprint(text))
	must.True(t, words(text, shared.ID, "2", "mps", "5", "2048 MiB", "0 MiB"), must.Sprint(text))

	_, out, _ := n.claim("list", "--json")
	var list struct {
		Claims []struct {
			ID, Mode  string
			Unlimited bool
		}
	}
	must.NoError(t, json.Unmarshal([]byte(out), &list))
	must.Eq(t, "exclusive", list.Claims[0].Mode)
	must.True(t, list.Claims[0].Unlimited)

	code, out, _ := n.claim("release", "--force", whole.ID)
	must.Eq(t, 0, code)
	must.StrContains(t, out, "what it had of GPU 0 ("+gpus[0].UUID+") in mode exclusive is free")
	must.StrContains(t, out, "goes on, with all that it was given of the GPU")
}

func TestStatus_ModeOfSlicesIsNamed(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	c := n.reserve(t, g, 0, 1)
	_, out, _ := n.claim("list", "--json")
	must.StrContains(t, out, `"mode": "slice"`)
	_, out, _ = n.claim("list")
	must.True(t, words(out, c.ID, "0", "slice", "0-1", "2048 MiB"), must.Sprint(out))
}

func TestStatus_BrokenLayout(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	must.NoError(t, os.WriteFile(filepath.Join(n.runDir, "layout.json"), []byte("{"), 0o644))
	must.StrContains(t, n.statusJSON(t, 0).LayoutError, "layout.json")
	_, text, _ := n.status()
	must.StrContains(t, text, "How the GPUs are shared is not known")
}

// What the device plugin says of a GPU's health shows with the GPU and with the claims on it.
func TestStatus_Health(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	n := newNode(t, nvmltest.New(a, b))
	hit, spared := n.reserve(t, a, 0, 1), n.reserve(t, b, 0, 1)
	condition := health.Condition{Problem: "Xid 79: the GPU has fallen off the bus", Since: time.Unix(1_700_000_000, 0).UTC()}
	must.NoError(t, health.Write(n.runDir, health.Report{GPUs: map[string]health.Condition{a.UUID: condition}}))
	r := n.statusJSON(t, 0)
	must.Eq(t, &condition, r.GPUs[0].Unhealthy)
	must.Eq(t, report.Slices{SliceBytes: 1 << 30, Total: 140, Taken: 2}, r.GPUs[0].Slices, must.Sprint("nothing of it is free"))
	must.Nil(t, r.GPUs[1].Unhealthy)
	must.Eq(t, &condition, r.Claims[0].GPUUnhealthy)
	must.Nil(t, r.Claims[1].GPUUnhealthy)
	_, text, _ := n.status()
	must.StrContains(t, text, "GPU 0 is unhealthy since 2023-11-14T22:13:20Z: "+condition.Problem+"\n")
	must.StrContains(t, text, "claim "+hit.ID+": its GPU is unhealthy: "+condition.Problem+"\n")
	must.StrNotContains(t, text, "claim "+spared.ID+": its GPU")

	var out bytes.Buffer
	n.stdout = &out
	must.Eq(t, 0, n.main([]string{"claim", "list", "--state-dir", n.stateDir, "--run-dir", n.runDir}))
	must.StrContains(t, out.String(), "claim "+hit.ID+": its GPU is unhealthy")

	must.NoError(t, os.WriteFile(filepath.Join(n.runDir, health.FileName), []byte("{"), 0o644))
	_, text, _ = n.status()
	must.StrContains(t, text, "Which GPUs are unhealthy is not known: ")
}

// A claim whose memory the device plugin finds uncounted shows so, as long as its container lives.
func TestStatus_Uncounted(t *testing.T) {
	g := nvmltest.H200(0)
	n := newNode(t, nvmltest.New(g))
	past, kept, ended := n.reserve(t, g, 0, 1), n.reserve(t, g, 2, 3), n.reserve(t, g, 4, 5)
	n.bind(t, past, "c1")
	n.bind(t, kept, "c2")
	n.end(t, ended, "c3")
	condition := health.Condition{Problem: "process 4711 (5GiB)", Since: time.Unix(1_700_000_000, 0).UTC(), Bytes: 4 << 30}
	must.NoError(t, health.Write(n.runDir, health.Report{
		Uncounted: map[string]health.Condition{past.ID: condition, ended.ID: condition},
	}))
	line := "claim " + past.ID + " uses 4GiB that it does not count, since 2023-11-14T22:13:20Z: process 4711 (5GiB)\n"
	for _, command := range []func(...string) (int, string, string){
		n.status, func(args ...string) (int, string, string) { return n.claim(append([]string{"list"}, args...)...) },
	} {
		_, text, _ := command()
		must.StrContains(t, text, line)
		must.Eq(t, 1, strings.Count(text, "does not count"))
		must.Eq(t, 1, strings.Count(text, "uncounted"), must.Sprint("its state"))
		_, out, _ := command("--json")
		var list claimList
		must.NoError(t, json.Unmarshal([]byte(out), &list))
		must.Eq(t, []*health.Condition{&condition, nil, nil},
			[]*health.Condition{list.Claims[0].Uncounted, list.Claims[1].Uncounted, list.Claims[2].Uncounted})
		must.Eq(t, claim.StateRunning, list.Claims[0].State)
	}
}
