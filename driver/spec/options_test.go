package spec

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/internal/nomadtest"
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

func resourcesOf(linux drivers.LinuxResources, memoryMB, memoryMaxMB int64) *drivers.TaskConfig {
	return &drivers.TaskConfig{AllocID: "alloc", Name: "web", Resources: nomadtest.Resources(linux, 0, memoryMB, memoryMaxMB)}
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
