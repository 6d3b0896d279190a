package bundle

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

// A glance tells the same as reading the whole spec, of all by which a container can ask for GPUs.
func TestGlance(t *testing.T) {
	major, minor := int64(195), int64(0)
	whole := &specs.Spec{
		Process: &specs.Process{Env: []string{"A=1"}, Args: []string{"sh"}, Cwd: "/", Rlimits: []specs.POSIXRlimit{{Type: "x"}}},
		Mounts: []specs.Mount{{
			Destination: "/d", Type: "bind", Source: "/s", Options: []string{"ro"},
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: 1, HostID: 2, Size: 3}},
		}},
		Annotations: map[string]string{"k": "v"},
		Hooks: &specs.Hooks{
			Prestart:        []specs.Hook{{Path: "/a", Args: []string{"a"}}}, //nolint:staticcheck // still what NVIDIA's tools use
			CreateRuntime:   []specs.Hook{{Path: "/b"}},
			CreateContainer: []specs.Hook{{Path: "/c"}},
			StartContainer:  []specs.Hook{{Path: "/d"}},
			Poststart:       []specs.Hook{{Path: "/e"}},
			Poststop:        []specs.Hook{{Path: "/f"}},
		},
		Linux: &specs.Linux{
			Devices: []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: major, Minor: minor}},
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"}},
				Pids:    &specs.LinuxPids{},
			},
		},
	}
	content, err := json.Marshal(whole)
	must.NoError(t, err)

	file := File{Content: content}
	glanced, err := file.Glance()
	must.NoError(t, err)
	must.Eq(t, whole.Process.Env, glanced.Process.Env)
	must.Eq(t, whole.Mounts, glanced.Mounts)
	must.Eq(t, whole.Annotations, glanced.Annotations)
	must.Eq(t, whole.Hooks, glanced.Hooks)
	must.Eq(t, whole.Linux.Devices, glanced.Linux.Devices)
	must.Eq(t, whole.Linux.Resources.Devices, glanced.Linux.Resources.Devices)
}

func TestGlance_OfLittle(t *testing.T) {
	for _, text := range []string{`{}`, `{"process": null, "linux": null}`, `{"linux": {"resources": null}}`} {
		file := File{Content: []byte(text)}
		spec, err := file.Glance()
		must.NoError(t, err)
		must.Nil(t, spec.Process)
	}
}

func TestReadProgram_NoBundle(t *testing.T) {
	for _, dir := range []string{"", "relative"} {
		_, err := ReadProgram(dir)
		must.ErrorContains(t, err, "names no bundle")
	}
	_, err := ReadProgram(t.TempDir())
	must.ErrorContains(t, err, "no such file")
}
