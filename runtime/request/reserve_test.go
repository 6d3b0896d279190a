package request

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

const gib = 1 << 30

// inventory is a node with a whole GPU, a smaller one, and one that MIG has split in two.
func inventory() []gpuinfo.GPU {
	return []gpuinfo.GPU{
		{UUID: "GPU-a", Index: 0, Name: "NVIDIA H200", MemoryBytes: 141 * gib, UsableBytes: 140*gib + 1, ContextBytes: 500 << 20},
		{UUID: "GPU-b", Index: 1, Name: "NVIDIA L4", MemoryBytes: 24 * gib, UsableBytes: 22 * gib, ContextBytes: 200 << 20},
		{UUID: "GPU-c", Index: 2, Name: "NVIDIA A100", MemoryBytes: 40 * gib, UsableBytes: 40 * gib, ContextBytes: 400 << 20},
		{UUID: "MIG-1", Index: 2, Name: "NVIDIA A100 MIG 3g.20gb", UsableBytes: 19 * gib, ContextBytes: 400 << 20, MIGParent: "GPU-c"},
		{UUID: "MIG-2", Index: 2, Name: "NVIDIA A100 MIG 3g.20gb", UsableBytes: 19 * gib, ContextBytes: 400 << 20, MIGParent: "GPU-c"},
	}
}

func newLedger(t *testing.T) *claim.Ledger {
	t.Helper()
	dir := t.TempDir()
	l, err := claim.Open(claim.Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")})
	must.NoError(t, err)
	return l
}

func gpuOf(t *testing.T, text string) gpuinfo.Selector {
	t.Helper()
	s, err := gpuinfo.ParseSelector(text)
	must.NoError(t, err)
	return s
}

func TestReserve(t *testing.T) {
	for name, tc := range map[string]struct {
		request Request
		gpu     string
		slices  int
	}{
		"the smallest that fits":     {Request{MemoryBytes: 8 * gib}, "MIG-1", 8},
		"more than an instance has":  {Request{MemoryBytes: 20 * gib}, "GPU-b", 20},
		"all of a GPU":               {Request{MemoryBytes: 140 * gib}, "GPU-a", 140},
		"one GPU":                    {Request{MemoryBytes: 8 * gib, GPU: gpuOf(t, "0")}, "GPU-a", 8},
		"one model":                  {Request{MemoryBytes: 3 * gib / 2, GPU: gpuOf(t, "model:*L4")}, "GPU-b", 2},
		"where a context still fits": {Request{MemoryBytes: 300 << 20}, "GPU-b", 1},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := Reserve(t.Context(), newLedger(t), Node{GPUs: inventory(), SliceBytes: gib}, tc.request, claim.Workload{})
			must.NoError(t, err)
			must.Eq(t, tc.gpu, made.GPU.UUID)
			must.Len(t, tc.slices, made.Slices)
			must.Eq(t, claim.SliceName(tc.gpu, 0), made.Slices[0])
			must.Eq(t, tc.request.MemoryBytes, made.LimitBytes)
			must.Eq(t, claim.OwnerExternal, made.Owner)
			must.Positive(t, made.GPU.ContextBytes)
			must.True(t, strings.HasPrefix(made.GPU.Name, "NVIDIA"))
		})
	}
}

func TestReserve_Refuses(t *testing.T) {
	for name, tc := range map[string]struct {
		inventory []gpuinfo.GPU
		request   Request
		want      string
	}{
		"no GPUs":              {nil, Request{MemoryBytes: gib}, "requests 1GiB of any GPU: this node has no GPU"},
		"no such GPU":          {inventory(), Request{MemoryBytes: gib, GPU: gpuOf(t, "7")}, "of index:7: this node has no such GPU"},
		"those that there are": {inventory(), Request{MemoryBytes: gib, GPU: gpuOf(t, "7")}, "1 (NVIDIA L4, GPU-b"},
		"a GPU that is split":  {inventory(), Request{MemoryBytes: gib, GPU: gpuOf(t, "GPU-c")}, "split into MIG instances"},
		"less than a context":  {inventory(), Request{MemoryBytes: 100 << 20}, "a CUDA context takes 200MiB of it"},
		"more than any has":    {inventory(), Request{MemoryBytes: 141 * gib}, "the largest has 140GiB: ask for less"},
		"more than it has":     {inventory(), Request{MemoryBytes: 23 * gib, GPU: gpuOf(t, "1")}, "the largest has 22GiB: ask for less"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			_, err := Reserve(t.Context(), l, Node{GPUs: tc.inventory, SliceBytes: gib}, tc.request, claim.Workload{})
			must.ErrorContains(t, err, tc.want)
			claims, _, err := l.List(t.Context())
			must.NoError(t, err)
			must.SliceEmpty(t, claims)
		})
	}
}

// Where claims compute in turns, a container's part is what its slices are worth of the GPU that it gets.
func TestReserve_Shares(t *testing.T) {
	node := Node{GPUs: inventory(), Layout: map[string]layout.GPU{"GPU-b": {Shares: true}}, SliceBytes: gib}
	for gpu, want := range map[string]*claim.Compute{"1": {Share: 364, Max: 1000, Class: claim.ClassNormal}, "0": nil} {
		made, err := Reserve(t.Context(), newLedger(t), node, Request{MemoryBytes: 8 * gib, GPU: gpuOf(t, gpu)}, claim.Workload{})
		must.NoError(t, err)
		must.Eq(t, want, made.Compute)
	}
}

// The device plugin shares some GPUs in another way than slices, or in slices of another size.
func TestReserve_ByTheLayout(t *testing.T) {
	const exclusive, mig = claim.ModeExclusive, claim.ModeMIG
	for name, tc := range map[string]struct {
		layout  map[string]layout.GPU
		request Request
		gpu     string
		slices  int
	}{
		"another mode":              {map[string]layout.GPU{"GPU-b": {Mode: exclusive}}, Request{MemoryBytes: 20 * gib}, "GPU-a", 20},
		"instances of another mode": {map[string]layout.GPU{"GPU-c": {Mode: mig}}, Request{MemoryBytes: 8 * gib}, "GPU-b", 8},
		"an instance in slices": {map[string]layout.GPU{"GPU-c": {Mode: mig}, "MIG-2": {SliceBytes: 2 * gib}},
			Request{MemoryBytes: 8 * gib}, "MIG-2", 4},
		"larger slices":         {map[string]layout.GPU{"GPU-b": {SliceBytes: 4 * gib}}, Request{MemoryBytes: 20 * gib}, "GPU-b", 5},
		"GPUs of no other node": {map[string]layout.GPU{"GPU-x": {Mode: exclusive}}, Request{MemoryBytes: 20 * gib}, "GPU-b", 20},
	} {
		t.Run(name, func(t *testing.T) {
			node := Node{GPUs: inventory(), Layout: tc.layout, SliceBytes: gib}
			made, err := Reserve(t.Context(), newLedger(t), node, tc.request, claim.Workload{})
			must.NoError(t, err)
			must.Eq(t, tc.gpu, made.GPU.UUID)
			must.Len(t, tc.slices, made.Slices)
		})
	}
	node := Node{GPUs: inventory()[:2], SliceBytes: gib, Layout: map[string]layout.GPU{
		"GPU-a": {Mode: exclusive}, "GPU-b": {Mode: claim.ModeMPS, SliceBytes: gib},
	}}
	_, err := Reserve(t.Context(), newLedger(t), node, Request{MemoryBytes: 8 * gib}, claim.Workload{})
	must.ErrorContains(t, err, "no such GPU is shared in slices")
	must.ErrorContains(t, err, "GPU 0 (NVIDIA H200, GPU-a) is in mode exclusive, GPU 1 (NVIDIA L4, GPU-b) is in mode mps")
}

func environment(entries []string) map[string]string {
	env := map[string]string{}
	for _, entry := range entries {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}
