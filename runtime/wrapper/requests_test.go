package wrapper_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

const asks8GiB = "TRANCHE_GPU_MEMORY=8GiB"

// newAskingNode is a node that knows its GPUs: two of 140 slices.
func newAskingNode(t *testing.T, next string) *node {
	t.Helper()
	n := newNode(t, next)
	n.knowsGPUs()
	return n
}

func (n *node) knowsGPUs() {
	n.t.Helper()
	var gpus []gpuinfo.GPU
	for i, uuid := range []string{runtimetest.GPU0, runtimetest.GPU1} {
		gpus = append(gpus, gpuinfo.GPU{
			UUID: uuid, Index: i, Name: "NVIDIA H200", MemoryBytes: 141 << 30, UsableBytes: 140 << 30, ContextBytes: 300 << 20,
		})
	}
	must.NoError(n.t, n.cfg.Place().KeepGPUs(gpus))
}

// setting adds a line to the configuration of tranche-runtime.
func (n *node) setting(line string) {
	n.t.Helper()
	file := n.path("config.toml")
	runtimetest.WriteFile(n.t, file, readFile(n.t, file)+line+"\n")
}

// annotate adds annotations to the spec in a bundle.
func (n *node) annotate(bundle string, annotations map[string]string) string {
	n.t.Helper()
	file := filepath.Join(bundle, "config.json")
	var spec map[string]any
	must.NoError(n.t, json.Unmarshal([]byte(readFile(n.t, file)), &spec))
	spec["annotations"] = annotations
	content, err := json.Marshal(spec)
	must.NoError(n.t, err)
	runtimetest.WriteFile(n.t, file, string(content))
	return bundle
}

func (n *node) claims() []*claim.Claim {
	n.t.Helper()
	claims, problems, err := n.ledger.List(n.t.Context())
	must.NoError(n.t, err)
	must.SliceEmpty(n.t, problems)
	return claims
}

func TestMain_Requests(t *testing.T) {
	for name, way := range map[string]struct {
		env         []string
		annotations map[string]string
		gpu         string
		limit       uint64
	}{
		"environment":     {env: []string{asks8GiB}, gpu: runtimetest.GPU0, limit: 8 << 30},
		"a GPU, too":      {env: []string{"TRANCHE_GPU_MEMORY=512MiB", "TRANCHE_GPU=1"}, gpu: runtimetest.GPU1, limit: 512 << 20},
		"annotations":     {annotations: map[string]string{"dev.tranche/gpu-memory": "3GiB", "dev.tranche/gpu": runtimetest.GPU1}, gpu: runtimetest.GPU1, limit: 3 << 30},
		"a CDI device":    {env: []string{"TRANCHE_CDI_SLICE_8GiB=8GiB"}, gpu: runtimetest.GPU0, limit: 8 << 30},
		"the last of two": {env: []string{"TRANCHE_GPU_MEMORY=1GiB", asks8GiB}, gpu: runtimetest.GPU0, limit: 8 << 30},
	} {
		t.Run(name, func(t *testing.T) {
			next, record := recorder(t)
			n := newAskingNode(t, next)
			bundle := n.annotate(n.bundle("b", "true", append(way.env, "A=1")...), way.annotations)
			_ = n.runtime("create", "--bundle", bundle, "c1").Run()
			cmdline, _ := record()
			must.StrContains(t, cmdline, "create", must.Sprint("the next runtime was not called"))

			made := n.claims()
			must.Len(t, 1, made)
			must.Eq(t, claim.OwnerExternal, made[0].Owner)
			must.Eq(t, way.gpu, made[0].GPU.UUID)
			must.Eq(t, "NVIDIA H200", made[0].GPU.Name)
			must.Eq(t, way.limit, made[0].LimitBytes)

			content := readFile(t, filepath.Join(bundle, "config.json"))
			var spec specs.Spec
			must.NoError(t, json.Unmarshal([]byte(content), &spec))
			must.Eq(t, []string{"PATH=/bin", "HOME=/", "A=1", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
			must.StrContains(t, content, "/.tranche/claims/"+made[0].ID+"/usage")
			must.SliceContains(t, spec.Hooks.Prestart[0].Args, made[0].ID) //nolint:staticcheck // see bindingHooks
		})
	}
}

// What the device plugin says of the GPUs counts for containers that ask by themselves, too.
func TestMain_RequestsByTheLayout(t *testing.T) {
	next, _ := recorder(t)
	n := newAskingNode(t, next)
	must.NoError(t, layout.Write(n.cfg.RunDir, map[string]layout.GPU{
		runtimetest.GPU0: {Mode: claim.ModeExclusive}, runtimetest.GPU1: {Mode: claim.ModeSlice, SliceBytes: 4 << 30},
	}))
	_ = n.runtime("create", "--bundle", n.bundle("b", "true", asks8GiB), "c1").Run()
	made := n.claims()
	must.Len(t, 1, made)
	must.Eq(t, runtimetest.GPU1, made[0].GPU.UUID)
	must.Len(t, 2, made[0].Slices)

	must.NoError(t, layout.Write(n.cfg.RunDir, map[string]layout.GPU{
		runtimetest.GPU0: {Mode: claim.ModeExclusive}, runtimetest.GPU1: {Mode: claim.ModeTimeslice},
	}))
	message := n.fails(n.runtime("create", "--bundle", n.bundle("b2", "true", asks8GiB), "c2"))
	must.StrContains(t, message, "is in mode exclusive")
	must.StrContains(t, message, "is in mode timeslice")
	must.Eq(t, made, n.claims())
}

func TestMain_RequestsNothing(t *testing.T) {
	next, _ := recorder(t)
	n := newAskingNode(t, next)
	bundle := n.bundle("b", "true", "TRANCHE_GPU_MEMORY=", "TRANCHE_GPU=")
	content := readFile(t, filepath.Join(bundle, "config.json"))
	_ = n.runtime("create", "--bundle", bundle, "c1").Run()
	must.Eq(t, content, readFile(t, filepath.Join(bundle, "config.json")))
	must.SliceEmpty(t, n.claims())
}

func TestMain_RequestsInVain(t *testing.T) {
	megabyte := strings.Repeat("x", 1<<20)
	for name, tc := range map[string]struct {
		env     []string
		setting string
		prepare func(n *node)
		want    []string
	}{
		"nobody may":        {env: []string{asks8GiB}, setting: `local_claims = "off"`, want: []string{"local_claims"}},
		"a task of Nomad's": {env: []string{asks8GiB, "NOMAD_ALLOC_ID=1"}, want: []string{"NOMAD_ALLOC_ID", `device "nvidia/slice"`}},
		"compute":           {env: []string{asks8GiB, "TRANCHE_GPU_COMPUTE=50%"}, want: []string{"TRANCHE_GPU_COMPUTE", "none of share, max and priority"}},
		"no room":           {env: []string{"TRANCHE_GPU_MEMORY=141GiB"}, want: []string{"141GiB of any GPU", "has 140 of 140 slices free"}},
		"no such GPU":       {env: []string{asks8GiB, "TRANCHE_GPU=2"}, want: []string{"no such GPU", runtimetest.GPU1}},
		"no amount":         {env: []string{"TRANCHE_GPU_MEMORY=8G"}, want: []string{"TRANCHE_GPU_MEMORY", "8G"}},
		"a megabyte":        {env: []string{"TRANCHE_GPU_MEMORY=" + megabyte}, want: []string{"1048576 bytes long"}},
		"no UTF-8":          {env: []string{"TRANCHE_GPU_MEMORY=\xff\xfe8GiB"}, want: []string{"not valid UTF-8"}},
		"disagreement":      {env: []string{asks8GiB, "TRANCHE_CDI_SLICE_4GiB=4GiB"}, want: []string{"two different things"}},
		"slices of another size": {
			env: []string{asks8GiB, "TRANCHE_GPU=0"}, setting: `slice_memory = "2GiB"`,
			prepare: func(n *node) { n.reserve(runtimetest.GPU0, "slice-000") },
			want:    []string{"slices of 1GiB", "slice_memory is 2GiB"},
		},
		"no GPUs are known": {
			env:     []string{asks8GiB},
			prepare: func(n *node) { must.NoError(n.t, os.RemoveAll(n.cfg.RunDir)) },
			want:    []string{"query NVML", "ERROR_LIBRARY_NOT_FOUND"},
		},
		"a container that cannot be made": {
			env: []string{asks8GiB}, prepare: func(n *node) { must.NoError(n.t, os.Remove(n.cfg.HookPath)) },
			want: []string{"hook_path"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			next, _ := recorder(t)
			n := newAskingNode(t, next)
			if tc.setting != "" {
				n.setting(tc.setting)
			}
			if tc.prepare != nil {
				tc.prepare(n)
			}
			before := len(n.claims())
			bundle := n.bundle("b", "true", tc.env...)
			content := readFile(t, filepath.Join(bundle, "config.json"))
			stderr := n.fails(n.runtime("create", "--bundle", bundle, "c1"))
			for _, want := range tc.want {
				must.StrContains(t, stderr, want)
			}
			must.Less(t, 2000, len(stderr))
			must.Len(t, before, n.claims(), must.Sprint("a claim was left behind"))
			must.Eq(t, content, readFile(t, filepath.Join(bundle, "config.json")))
		})
	}
}

func TestMain_RequestsBesideClaims(t *testing.T) {
	next, _ := recorder(t)
	n := newAskingNode(t, next)
	_, token := n.reserve(runtimetest.GPU0, "slice-000")
	stderr := n.fails(n.runtime("create", "--bundle", n.bundle("b", "true", token, asks8GiB), "c1"))
	must.StrContains(t, stderr, "in one way")
	_, secret, _ := strings.Cut(token, "=")
	must.StrNotContains(t, stderr, secret)
	must.Len(t, 1, n.claims())
}

func TestMain_TasksOfNomadMayRequestWhereAllowed(t *testing.T) {
	next, _ := recorder(t)
	n := newAskingNode(t, next)
	n.setting(`local_claims = "always"`)
	_ = n.runtime("create", "--bundle", n.bundle("b", "true", asks8GiB, "NOMAD_ALLOC_ID=1"), "c1").Run()
	must.Len(t, 1, n.claims())
}

// A container asks, gets its fraction, and leaves nothing behind.
func TestContainer_Requests(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			n.knowsGPUs()
			n.reserve(runtimetest.GPU1, "slice-000") // the fuller one
			script := "busybox ls /dev | busybox grep nvidia; busybox ls /.tranche/claims; busybox env | busybox grep TRANCHE; true"
			bundle := n.image(n.bundle("b", script, asks8GiB))
			must.NoError(t, n.create("c1", bundle), must.Func(func() string { return n.output("c1") }))
			made := n.localClaim()
			must.Eq(t, runtimetest.GPU1, made.GPU.UUID)
			must.Eq(t, "c1", made.Container.ID)
			must.True(t, claim.Alive(*made.Container))

			n.must(n.oci("start", "c1"))
			n.waitFor("the container ends", func() bool { return n.status("c1") == "stopped" })
			must.Eq(t, lacksGlibc+"\nnvidia1\nnvidiactl\n"+made.ID+"\n", n.output("c1"))
			n.must(n.oci("delete", "c1"))
			must.Len(t, 1, n.claims(), must.Sprint("only Nomad's is left"))
			must.DirNotExists(t, filepath.Join(n.cfg.RunDir, "claims", made.ID))
		})
	}
}

// localClaim is the one claim that was made outside Nomad.
func (n *node) localClaim() *claim.Claim {
	n.t.Helper()
	var found []*claim.Claim
	for _, c := range n.claims() {
		if c.Owner == claim.OwnerExternal {
			found = append(found, c)
		}
	}
	must.Len(n.t, 1, found)
	return found[0]
}

// What a container had that was killed, and that nobody deletes, goes to the next that asks, even where nothing else of
// Tranche runs on the node.
func TestContainer_RequestsAfterOneThatWasKilled(t *testing.T) {
	n := newContainerNode(t, "runc")
	n.knowsGPUs()
	all := []string{"TRANCHE_GPU_MEMORY=140GiB", "TRANCHE_GPU=0"}
	must.NoError(t, n.create("c1", n.image(n.bundle("b", "exec busybox sleep 1000", all...))))
	n.must(n.oci("start", "c1"))
	message := n.fails(n.oci("run", "--bundle", n.image(n.bundle("b2", "echo second", all...)), "c2"))
	must.StrContains(t, message, "has 0 of 140 slices free")

	must.NoError(t, syscall.Kill(n.localClaim().Container.InitPID, syscall.SIGKILL))
	n.waitFor("the container ends", func() bool { return n.status("c1") == "stopped" })
	must.Eq(t, "third\n", n.must(n.oci("run", "--bundle", n.image(n.bundle("b3", "echo third", all...)), "c3")))
	must.SliceEmpty(t, n.claims())
}
