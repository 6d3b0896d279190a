package spec

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/storage"
)

// apply applies options to an empty spec.
func apply(t *testing.T, opts ...oci.SpecOpts) *Spec {
	t.Helper()
	s, err := tryApply(opts...)
	must.NoError(t, err)
	return s
}

func tryApply(opts ...oci.SpecOpts) (*Spec, error) {
	s := &Spec{Process: &specs.Process{}, Linux: &specs.Linux{}, Root: &specs.Root{}}
	for _, opt := range opts {
		if err := opt(context.Background(), nil, &containers.Container{}, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func TestWithArgs(t *testing.T) {
	image := ocispec.ImageConfig{Entrypoint: []string{"/entry", "-e"}, Cmd: []string{"cmd", "-c"}}
	cases := []struct {
		name    string
		options TaskConfig
		image   ocispec.ImageConfig
		want    []string
	}{
		{"the image's own", TaskConfig{}, image, []string{"/entry", "-e", "cmd", "-c"}},
		{"command", TaskConfig{Command: "x"}, image, []string{"/entry", "-e", "x"}},
		{"command and args", TaskConfig{Command: "x", Args: []string{"y"}}, image, []string{"/entry", "-e", "x", "y"}},
		{"args", TaskConfig{Args: []string{"y"}}, image, []string{"/entry", "-e", "y"}},
		{"entrypoint", TaskConfig{Entrypoint: []string{"z"}}, image, []string{"z"}},
		{"everything", TaskConfig{Entrypoint: []string{"z"}, Command: "x", Args: []string{"y"}}, image,
			[]string{"z", "x", "y"}},
		{"an image with a command only", TaskConfig{}, ocispec.ImageConfig{Cmd: []string{"cmd"}}, []string{"cmd"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			must.Eq(t, c.want, apply(t, withArgs(&c.options, c.image, "app")).Process.Args)
		})
	}
	_, err := tryApply(withArgs(&TaskConfig{}, ocispec.ImageConfig{}, "app"))
	must.ErrorContains(t, err, `image "app" says nothing about what to run; set the option command`)
}

func TestWithEnv_TaskOverImageAndNoClaims(t *testing.T) {
	image := ocispec.ImageConfig{Env: []string{"A=image", "B=image", "PATH=/image", "TRANCHE_CLAIM_00000000=stolen"}}
	cfg := &drivers.TaskConfig{Env: map[string]string{"B": "task", "TRANCHE_CLAIM_11111111": "token"}}
	env := apply(t, withImageEnv(image), withTaskEnv(cfg)).Process.Env
	must.SliceContainsAll(t, env, []string{"PATH=/image", "A=image", "B=task"})
	must.SliceContains(t, apply(t, withImageEnv(ocispec.ImageConfig{})).Process.Env, defaultPath)
}

func TestWithWorkDir(t *testing.T) {
	must.Eq(t, "/task", apply(t, withWorkDir("/task", "/image")).Process.Cwd)
	must.Eq(t, "/image", apply(t, withWorkDir("", "/image")).Process.Cwd)
	must.Eq(t, "/", apply(t, withWorkDir("", "")).Process.Cwd)
}

func TestWithUser_Root(t *testing.T) {
	s := apply(t, withUser("", "", "app"))
	must.Eq(t, []uint32{0, 0}, []uint32{s.Process.User.UID, s.Process.User.GID})
}

func resourcesOf(linux drivers.LinuxResources, memoryMB, memoryMaxMB int64) *drivers.TaskConfig {
	return &drivers.TaskConfig{AllocID: "alloc", Name: "web", Resources: &drivers.Resources{
		LinuxResources: &linux,
		NomadResources: &structs.AllocatedTaskResources{
			Memory: structs.AllocatedMemoryResources{MemoryMB: memoryMB, MemoryMaxMB: memoryMaxMB},
		},
	}}
}

func TestWithVolumes(t *testing.T) {
	cfg := &drivers.TaskConfig{Mounts: []*drivers.MountConfig{
		{HostPath: "/h1", TaskPath: "/t1"},
		{HostPath: "/h2", TaskPath: "/t2", Readonly: true, PropagationMode: "bidirectional"},
	}}
	must.Eq(t, []specs.Mount{
		{Type: "bind", Source: "/h1", Destination: "/t1", Options: []string{"rbind", "rprivate", "rw"}},
		{Type: "bind", Source: "/h2", Destination: "/t2", Options: []string{"rbind", "rshared", "ro"}},
	}, apply(t, storage.WithVolumes(cfg)).Mounts)

	cfg.Mounts[0].PropagationMode = "sideways"
	_, err := tryApply(storage.WithVolumes(cfg))
	must.ErrorContains(t, err, `propagation_mode = "sideways"`)
}

func TestWithDevices(t *testing.T) {
	cfg := &drivers.TaskConfig{Devices: []*drivers.DeviceConfig{
		{HostPath: "/dev/null", TaskPath: "/dev/nothing", Permissions: "r"},
	}}
	s := apply(t, withDevices(cfg))
	must.Len(t, 1, s.Linux.Devices)
	must.Eq(t, "/dev/nothing", s.Linux.Devices[0].Path)
	must.Eq(t, "r", s.Linux.Resources.Devices[0].Access)

	cfg.Devices[0].HostPath = "/dev/no-such-device"
	_, err := tryApply(withDevices(cfg))
	must.ErrorContains(t, err, "/dev/no-such-device")
}

type modifierFunc func(*specs.Spec) error

func (f modifierFunc) Modify(s *specs.Spec) error { return f(s) }

func TestSpecOptions_GPUComesLast(t *testing.T) {
	c := &Container{Task: resourcesOf(drivers.LinuxResources{}, 64, 0), Options: &TaskConfig{Command: "x"},
		Plugin: &Config{Runtime: ociruntime.Runc, Namespace: "nomad"}, Network: &network.Network{Mode: network.Host}, Storage: &storage.Prepared{},
		GPU: &gpu.Prepared{Edits: modifierFunc(func(s *specs.Spec) error {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/.tranche/claims/x"})
			return nil
		})},
	}
	ctx := namespaces.WithNamespace(context.Background(), "nomad")
	made := &Spec{}
	for _, opt := range c.SpecOptions() {
		must.NoError(t, opt(ctx, nil, &containers.Container{}, made))
	}
	must.Eq(t, "/.tranche/claims/x", made.Mounts[len(made.Mounts)-1].Destination)
}
