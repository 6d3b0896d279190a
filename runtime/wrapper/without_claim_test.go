package wrapper

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/nvidia"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func nvidiaDevices(t *testing.T) nvidia.Devices {
	t.Helper()
	devices, err := nvidia.ReadDevices(strings.NewReader("195 nvidia\n508 nvidia-uvm\n"))
	must.NoError(t, err)
	return devices
}

// What is not NVIDIA's stays.
func TestWithoutGPUs(t *testing.T) {
	spec := runtimetest.ContainerSpec()
	must.NoError(t, json.Unmarshal([]byte(`{"process": {"env": ["A=1", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]},
		"hooks": {"prestart": [{"path": "/h"}, {"path": "/usr/bin/nvidia-container-toolkit"}], "poststop": [{"path": "/p"}]},
		"linux": {"devices": [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
			{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}],
			"resources": {"devices": [{"allow": false, "access": "rwm"},
				{"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
				{"allow": true, "type": "c", "major": 195, "minor": 255, "access": "rwm"}]}},
		"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0", "a": "b"}}`), spec))
	mounts := runtimetest.Destinations(spec)
	must.NoError(t, withoutGPUs{devices: nvidiaDevices(t)}.Modify(spec))
	must.Eq(t, []string{"A=1", "NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
	must.Eq(t, []string{"/dev/fuse"}, runtimetest.DevicePaths(spec))
	must.Len(t, 2, spec.Linux.Resources.Devices)
	must.Eq(t, map[string]string{"a": "b"}, spec.Annotations)
	must.Eq(t, mounts, runtimetest.Destinations(spec))
	must.Eq(t, []specs.Hook{{Path: "/h"}}, spec.Hooks.Prestart) //nolint:staticcheck // as in real specs
	must.Eq(t, []specs.Hook{{Path: "/p"}}, spec.Hooks.Poststop)
}

func TestWithoutClaim_ErrorIsShort(t *testing.T) {
	spec := runtimetest.ContainerSpec()
	spec.Process.Env = []string{"NVIDIA_VISIBLE_DEVICES=" + strings.Repeat("\x1b[2J\n", 1<<20)}
	for range 1000 {
		spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/nvidia" + strings.Repeat("\xff", 1<<10)})
	}
	err := refuseWithoutClaim(nvidiaDevices(t).Requests(spec))
	must.Less(t, 2000, len(err.Error()))
	must.StrNotContains(t, err.Error(), "\n")
	must.StrNotContains(t, err.Error(), "\x1b")
	must.StrContains(t, err.Error(), "and 997 more")
}
