package cli

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

func TestChooseGPU(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(3)
	node := &nvml.Node{
		GPUs:   []nvml.GPU{a, b},
		Failed: []nvml.Failure{{Index: 1, Err: errors.New("it fell off the bus")}},
	}
	find := func(node *nvml.Node, gpu string) (nvml.GPU, error) { return gpuChoice{gpuFlag, gpu}.find(node) }
	for choice, want := range map[string]nvml.GPU{"0": a, "3": b, a.UUID: a, b.UUID[:12]: b} {
		got, err := find(node, choice)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	for choice, want := range map[string]string{
		"2":    "there is no GPU 2: this node has 0 (NVIDIA H200, " + a.UUID + "), 3 (NVIDIA H200",
		"-1":   "there is no GPU -1",
		"1":    "GPU 1 does not answer: it fell off the bus",
		"GPU-": "2 GPUs have a UUID that begins with",
		"MIG-": "no GPU has the UUID",
		"":     "no GPU has the UUID",
	} {
		_, err := find(node, choice)
		must.ErrorContains(t, err, want)
	}
	_, err := find(&nvml.Node{}, "0")
	must.ErrorContains(t, err, "this node has no GPU that answers")
}

// Of a GPU with MIG, an instance can be chosen.
func TestChooseGPU_MIG(t *testing.T) {
	g := withInstances(nvmltest.H200(0))
	node := &nvml.Node{GPUs: []nvml.GPU{g, nvmltest.H200(1)}}
	found, err := gpuChoice{gpuFlag, "MIG-b"}.find(node)
	must.NoError(t, err)
	must.Eq(t, "MIG-b", found.UUID)
	must.Eq(t, 35<<30, found.UsableBytes())
	must.Eq(t, g.UUID, found.Origin.GPUUUID)
	for _, whole := range []string{"0", g.UUID} {
		_, err = gpuChoice{"CUDA_VISIBLE_DEVICES", whole}.find(node)
		must.ErrorContains(t, err, "CUDA_VISIBLE_DEVICES: GPU 0 is split into MIG instances: name one by its UUID with --gpu: this node has")
		must.ErrorContains(t, err, "0 (NVIDIA H200 MIG 2g.35gb, MIG-b)")
	}
}

// withInstances returns a GPU on which somebody has made MIG instances.
func withInstances(g nvml.GPU) nvml.GPU {
	g.MIG = nvml.MIG{Capable: true, Enabled: true, Instances: []nvml.MIGInstance{
		{UUID: "MIG-a", Name: g.Name + " MIG 3g.71gb", MemoryBytes: 71 << 30, GPUInstance: 1},
		{UUID: "MIG-b", Name: g.Name + " MIG 2g.35gb", MemoryBytes: 35 << 30, GPUInstance: 3},
		{GPUInstance: 5, ComputeInstance: -1},
	}}
	return g
}

// A command without the flag runs on the GPU that its caller has chosen, and not at all if that is not one.
func TestChosenGPU(t *testing.T) {
	other := nvmltest.H200(2)
	other.Name = "Tesla T4"
	node := &nvml.Node{GPUs: []nvml.GPU{nvmltest.H200(0), nvmltest.H200(1)}}
	mixed := &nvml.Node{GPUs: []nvml.GPU{nvmltest.H200(0), other}}
	single := &nvml.Node{GPUs: []nvml.GPU{nvmltest.H200(0)}}
	uuid := nvmltest.H200(1).UUID
	const cuda, tools, byBus = "CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=PCI_BUS_ID"
	for name, tc := range map[string]struct {
		flag    string
		environ []string
		node    *nvml.Node
		want    gpuChoice
		refused string
	}{
		"nothing":  {"", nil, node, gpuChoice{"--gpu", "0"}, ""},
		"the flag": {"1", []string{cuda + "0,1", tools + "0"}, node, gpuChoice{"--gpu", "1"}, ""},

		"CUDA's variable":             {"", []string{cuda + "1", tools + "0"}, node, gpuChoice{"CUDA_VISIBLE_DEVICES", "1"}, ""},
		"by UUID":                     {"", []string{cuda + uuid}, mixed, gpuChoice{"CUDA_VISIBLE_DEVICES", uuid}, ""},
		"the rest is ignored by CUDA": {"", []string{cuda + " 1,-1,0"}, node, gpuChoice{"CUDA_VISIBLE_DEVICES", "1"}, ""},
		"several":                     {"", []string{cuda + "0,1"}, node, gpuChoice{}, cuda + "0,1 names 2 GPUs, and a command has one"},
		"none":                        {"", []string{cuda}, node, gpuChoice{}, cuda + " names no GPU: name one with --gpu"},
		"hidden":                      {"", []string{cuda + "-1"}, single, gpuChoice{}, cuda + "-1 names no GPU"},
		"a number among others":       {"", []string{cuda + "1"}, mixed, gpuChoice{}, "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name one"},
		"a number by bus":             {"", []string{cuda + "1", byBus}, mixed, gpuChoice{"CUDA_VISIBLE_DEVICES", "1"}, ""},

		"the tools' variable":  {"", []string{tools + uuid}, node, gpuChoice{"NVIDIA_VISIBLE_DEVICES", uuid}, ""},
		"several of the tools": {"", []string{tools + "1,0"}, node, gpuChoice{}, tools + "1,0 names 2 GPUs"},
		"all of the tools":     {"", []string{tools + "all"}, node, gpuChoice{"--gpu", "0"}, ""},
		"void":                 {"", []string{tools + "void"}, node, gpuChoice{"--gpu", "0"}, ""},
		"a number outside":     {"", []string{tools + "3"}, single, gpuChoice{"--gpu", "0"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chosenGPU(tc.flag, tc.environ, tc.node)
			if tc.refused != "" {
				must.ErrorContains(t, err, tc.refused)
				return
			}
			must.NoError(t, err)
			must.Eq(t, tc.want, got)
		})
	}
}
