package edit

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// withEverything is a spec to which an engine or NVIDIA's runtime has applied nvidia.com/gpu=all.
func withEverything(t *testing.T, node Node) *specs.Spec {
	t.Helper()
	runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, func(spec string) string {
		all := `{"name": "all", "containerEdits": {"hooks": [
				{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}
			], "env": ["OF_ALL=1"], "deviceNodes": [
				{"path": "/dev/nvidia0", "hostPath": "/dev/zero"}, {"path": "/dev/nvidia1", "hostPath": "/dev/full"}
			]}},
			{"name": "0",`
		return strings.Replace(spec, `{"name": "0",`, all, 1)
	})
	cache, err := cdi.NewCache(cdi.WithSpecDirs(node.CDISpecDirs...), cdi.WithAutoRefresh(false))
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	_, err = cache.InjectDevices(spec, "nvidia.com/gpu=all")
	must.NoError(t, err)
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"}, runtimetest.DevicePaths(spec))
	return spec
}

// Whatever an engine has applied, the container gets the GPU of its claim, once, and nothing of another.
func TestDeviceEdits_BesideCDI(t *testing.T) {
	node := testNode(t)
	spec := withEverything(t, node)
	edits, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU1, 1)})
	must.NoError(t, err)
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, runtimetest.DevicePaths(spec))
	must.Len(t, 0, spec.Hooks.CreateContainer)
	runtimetest.MountAt(t, spec, runtimetest.LibDir+"/libcuda.so."+runtimetest.DriverVersion)
	must.SliceContains(t, runtimetest.Destinations(spec), "/data/deep/down/below")
}

// Files that were brought for capabilities which the container does not ask for go, too.
func TestDeviceEdits_BesideCDI_Capabilities(t *testing.T) {
	node := testNode(t)
	spec := withEverything(t, node)
	spec.Process.Env = append(spec.Process.Env, DriverCapabilitiesEnv+"=compute")
	edits, err := newDevices(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU1, 1)})
	must.NoError(t, err)
	must.NoError(t, edits.Modify(spec))
	must.SliceNotContains(t, runtimetest.Destinations(spec), "/usr/bin/nvidia-smi")
}

// Without all-devices' edits of its own: a container's claim brings nothing of nvidia.com/gpu=all.
func TestDeviceEdits_NothingOfAll(t *testing.T) {
	node := testNode(t)
	withEverything(t, node)
	spec := specWith(t, node)
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, runtimetest.DevicePaths(spec))
	must.SliceNotContains(t, spec.Process.Env, "OF_ALL=1")
	must.Nil(t, spec.Hooks)
}
