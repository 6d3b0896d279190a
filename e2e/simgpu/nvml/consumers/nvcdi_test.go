package consumers

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// driverRoot has the simulator lay out a driver root, with device nodes, which needs root.
func driverRoot(t *testing.T) string {
	t.Helper()
	needs.Root(t, "to make device nodes")
	newNode(t)
	root := filepath.Join(t.TempDir(), "root")
	out, err := exec.Command(tool("simgpu"), "root", root).CombinedOutput()
	must.NoError(t, err, must.Sprintf("simgpu root %s: %s", root, out))
	t.Setenv("SIMGPU_TOPOLOGY", filepath.Join(root, "run/simgpu/topology"))
	t.Setenv("SIMGPU_STATE", filepath.Join(root, "run/simgpu/state"))
	t.Setenv("SIMGPU_DEV", filepath.Join(root, "dev"))
	return root
}

// testLogger keeps what nvcdi says to failed and verbose tests.
type testLogger struct{ t *testing.T }

func (l testLogger) Debugf(format string, args ...any)   { l.t.Logf(format, args...) }
func (l testLogger) Errorf(format string, args ...any)   { l.t.Logf(format, args...) }
func (l testLogger) Infof(format string, args ...any)    { l.t.Logf(format, args...) }
func (l testLogger) Warningf(format string, args ...any) { l.t.Logf(format, args...) }
func (l testLogger) Tracef(string, ...any)               {}

// newCDI asks nvcdi for the driver root as Tranche does. The names of devices are indices and UUIDs.
func newCDI(t *testing.T, root string, lib nvml.Interface) nvcdi.Interface {
	t.Helper()
	byIndex, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyIndex)
	must.NoError(t, err)
	byUUID, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	must.NoError(t, err)
	cdi, err := nvcdi.New(
		nvcdi.WithLogger(testLogger{t}),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(root),
		nvcdi.WithDevRoot(root),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDeviceNamers(byIndex, byUUID),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	must.NoError(t, err)
	return cdi
}

func TestNvcdiGeneratesASpecForTheDriverRoot(t *testing.T) {
	root := driverRoot(t)
	lib := openNVML(t)
	version := value[string](t)(lib.SystemGetDriverVersion())
	spec, err := newCDI(t, root, lib).GetSpec()
	must.NoError(t, err)
	raw := spec.Raw()
	must.Eq(t, "nvidia.com/gpu", raw.Kind)

	nodes := map[string]string{}
	for _, dev := range raw.Devices {
		must.SliceNotEmpty(t, dev.ContainerEdits.DeviceNodes, must.Sprintf("device %s", dev.Name))
		nodes[dev.Name] = dev.ContainerEdits.DeviceNodes[0].Path
	}
	count := value[int](t)(lib.DeviceGetCount())
	must.Positive(t, count)
	for i := range count {
		gpu := value[nvml.Device](t)(lib.DeviceGetHandleByIndex(i))
		minor := value[int](t)(gpu.GetMinorNumber())
		node := "/dev/nvidia" + strconv.Itoa(minor)
		must.Eq(t, node, nodes[strconv.Itoa(i)])
		must.Eq(t, node, nodes[value[string](t)(gpu.GetUUID())])
	}

	common := raw.ContainerEdits
	for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
		must.True(t, hasNode(common.DeviceNodes, node, filepath.Join(root, node)), must.Sprintf("node %s", node))
	}
	for _, name := range []string{"libcuda.so.", "libnvidia-ml.so."} {
		path := "/usr/lib/x86_64-linux-gnu/" + name + version
		must.True(t, hasMount(common.Mounts, path, filepath.Join(root, path)), must.Sprintf("mount %s", path))
	}
	must.True(t, hasMount(common.Mounts, "/usr/bin/nvidia-smi", filepath.Join(root, "usr/bin/nvidia-smi")))
}

func hasNode(nodes []*specs.DeviceNode, path, hostPath string) bool {
	for _, node := range nodes {
		if node.Path == path && node.HostPath == hostPath {
			return true
		}
	}
	return false
}

func hasMount(mounts []*specs.Mount, path, hostPath string) bool {
	for _, mount := range mounts {
		if mount.ContainerPath == path && mount.HostPath == hostPath {
			return true
		}
	}
	return false
}
