package edit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// deviceOf reads a GPU from a node's CDI spec.
func deviceOf(t *testing.T, node Node, uuid string) *cdi.Device {
	t.Helper()
	spec, err := cdi.ReadSpec(filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), 0)
	must.NoError(t, err)
	device := spec.GetDevice(uuid)
	must.NotNil(t, device)
	return device
}

// kernel writes what the kernel module says of itself and of its GPUs, which it numbers in their order.
func kernel(t *testing.T, version string, uuids ...string) string {
	t.Helper()
	proc := t.TempDir()
	runtimetest.WriteFile(t, filepath.Join(proc, "version"),
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build\nGCC version: 12.2.0\n")
	for i, uuid := range uuids {
		runtimetest.WriteFile(t, filepath.Join(proc, "gpus", "0000:0"+string(rune('0'+i))+":00.0", "information"),
			"Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t "+uuid+"\nDevice Minor: \t "+string(rune('0'+i))+"\n")
	}
	return proc
}

func TestCheckCurrent(t *testing.T) {
	node := testNode(t)
	for name, proc := range map[string]string{
		"the module says nothing": t.TempDir(),
		"the same driver":         kernel(t, runtimetest.DriverVersion, runtimetest.GPU0, runtimetest.GPU1),
		"UUIDs are not shown":     kernel(t, runtimetest.DriverVersion, "GPU-????????-????-????-????-????????????"),
	} {
		t.Run(name, func(t *testing.T) {
			must.NoError(t, checkCurrent(deviceOf(t, node, runtimetest.GPU1), proc))
		})
	}
}

func TestCheckCurrent_Wrong(t *testing.T) {
	replace := func(pairs ...string) func(string) string {
		return strings.NewReplacer(pairs...).Replace
	}
	cases := []struct {
		name  string
		edit  func(string) string
		proc  func(*testing.T) string
		named string
	}{
		{"a node is gone", replace(`"hostPath": "/dev/full"`, `"hostPath": "/dev/gone"`), nil, "/dev/gone: no such file"},
		{"a node is a file", replace(`"/dev/full"`, `"/etc/passwd"`), nil, "/etc/passwd is no character device"},
		{
			"a node has other numbers", replace(`"hostPath": "/dev/full"`, `"hostPath": "/dev/full", "major": 195, "minor": 1`),
			nil, "is 1:7 here, not 195:1",
		},
		{"a library is gone", replace("nvidia-smi", "nvidia-sniff"), nil, "nvidia-sniff"},
		{
			"another driver runs", nil, func(t *testing.T) string { return kernel(t, "575.51.03") },
			"has driver 570.124.06, and the kernel module is 575.51.03",
		},
		{
			"the GPUs were numbered anew", nil, func(t *testing.T) string {
				return kernel(t, runtimetest.DriverVersion, runtimetest.GPU1, runtimetest.GPU0)
			},
			"has the node /dev/nvidia1, and the GPU has minor number 0 now",
		},
		{
			"the device brings another GPU, too",
			replace(`[{"path": "/dev/nvidia1"`, `[{"path": "/dev/nvidia0", "hostPath": "/dev/zero"}, {"path": "/dev/nvidia1"`),
			nil, "has the GPUs /dev/nvidia0 and /dev/nvidia1",
		},
		{
			"every device brings a GPU",
			replace(`[{"path": "/dev/nvidiactl"`, `[{"path": "/dev/nvidia0", "hostPath": "/dev/zero"}, {"path": "/dev/nvidiactl"`),
			nil, "has the GPUs /dev/nvidia0",
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			node := testNode(t)
			proc := t.TempDir()
			if tc.edit != nil {
				runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, tc.edit)
			}
			if tc.proc != nil {
				proc = tc.proc(t)
			}
			err := checkCurrent(deviceOf(t, node, runtimetest.GPU1), proc)
			for _, named := range []string{tc.named, "etc/cdi/gpus.json", runtimetest.GPU1, "nvidia-ctk cdi generate"} {
				must.ErrorContains(t, err, named)
			}
		})
	}
}

// A link leads to the version, too.
func TestCheckCurrent_Link(t *testing.T) {
	node := testNode(t)
	runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, func(spec string) string {
		return strings.ReplaceAll(spec, "libcuda.so.570.124.06", "libcuda.so.1")
	})
	must.ErrorContains(t, checkCurrent(deviceOf(t, node, runtimetest.GPU0), kernel(t, "575.51.03")), "has driver 570.124.06")
}

// A spec that is out of date is left aside, and what is wrong with it is said where none can be made.
func TestDeviceEdits_OutOfDate(t *testing.T) {
	node := testNode(t)
	must.NoError(t, os.Remove(filepath.Join(node.DriverRoot, runtimetest.LibDir, "libcuda.so."+runtimetest.DriverVersion)))
	_, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)})
	for _, named := range []string{"etc/cdi/gpus.json", "libcuda.so." + runtimetest.DriverVersion, "none can be generated"} {
		must.ErrorContains(t, err, named)
	}
}
