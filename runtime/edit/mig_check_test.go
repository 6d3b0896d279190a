package edit

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func TestCheckInstance(t *testing.T) {
	proc := filepath.Join(t.TempDir(), "nvidia")
	runtimetest.WriteFile(t, filepath.Join(proc, "gpus/0000:19:00.0/information"), "GPU UUID: \t "+runtimetest.GPU1+"\nDevice Minor: \t 0\n")
	runtimetest.WriteFile(t, filepath.Join(proc, "gpus/0000:3b:00.0/information"), "GPU UUID: \t "+runtimetest.GPU0+"\nDevice Minor: \t 1\n")
	minors := filepath.Join(proc, "../nvidia-caps/mig-minors")
	runtimetest.WriteFile(t, minors, "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"+
		"gpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\ngpu1/gi1/ci1/access 149\ngpu1/gi11/access 237\ngpu1/gi11/ci0/access 238\n")
	nodes := func(caps ...string) []*cdispecs.DeviceNode {
		all := []*cdispecs.DeviceNode{{Path: "/dev/nvidia1"}}
		for _, c := range caps {
			all = append(all, &cdispecs.DeviceNode{Path: "/dev/nvidia-caps/nvidia-cap" + c})
		}
		return all
	}
	for name, tc := range map[string]struct {
		mig   *claim.MIG
		nodes []*cdispecs.DeviceNode
		want  string
	}{
		"no instance":                 {nil, nodes(), ""},
		"its own":                     {&claim.MIG{GPUUUID: runtimetest.GPU0, GPUInstance: 1}, nodes("147", "148"), ""},
		"of another GPU":              {&claim.MIG{GPUUUID: runtimetest.GPU0, GPUInstance: 1}, nodes("12", "13"), "nvidia-cap147, which is gpu1/gi1/access"},
		"of another GPU instance":     {&claim.MIG{GPUUUID: runtimetest.GPU0, GPUInstance: 11}, nodes("147", "148"), "nvidia-cap237"},
		"of another compute instance": {&claim.MIG{GPUUUID: runtimetest.GPU0, GPUInstance: 1, ComputeInstance: 1}, nodes("147", "148"), "nvidia-cap149"},
		"that nobody knows":           {&claim.MIG{GPUUUID: runtimetest.GPU0, GPUInstance: 5}, nodes("147", "148"), ""},
		"of a GPU that nobody knows":  {&claim.MIG{GPUUUID: "GPU-9", GPUInstance: 1}, nodes("12", "13"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkInstance(tc.nodes, tc.mig, proc)
			if tc.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, tc.want)
		})
	}
	must.NoError(t, checkInstance(nodes(), &claim.MIG{GPUUUID: runtimetest.GPU0}, t.TempDir()), must.Sprint("the module is not loaded"))
}
