package edit

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

func TestShadowedCopies(t *testing.T) {
	other := specs.Hook{Path: "/nvidia", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}
	spec := &specs.Spec{
		Hooks:  &specs.Hooks{CreateContainer: []specs.Hook{other}},
		Mounts: []specs.Mount{{Destination: shadow.ContainerDir}},
		Linux:  &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/fuse"}, {Path: "/dev/nvidia0"}}},
	}
	binding := BindingHooks{Path: "/usr/bin/tranche-hook", StateDir: "/s", RunDir: "/r", Claims: []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)}}
	must.NoError(t, driverCopies{binding: binding, libraries: shadow.Libraries{Dir: "/lib/tranche", Governed: true}}.Modify(spec))
	must.Eq(t, []string{shadow.ContainerDir, shadow.CopiesDir}, runtimetest.Destinations(spec))
	mount := spec.Mounts[1]
	must.Eq(t, "tmpfs", mount.Type)
	must.SliceContainsSubset(t, mount.Options, []string{"ro", "nosuid", "nodev", "size=128m"})
	must.SliceNotContains(t, mount.Options, "noexec")
	must.Len(t, 2, spec.Hooks.CreateContainer)
	must.Eq(t, other, spec.Hooks.CreateContainer[0])
	hook := spec.Hooks.CreateContainer[1]
	must.Eq(t, []string{"tranche-hook", "createContainer", "--state-dir", "/s", "--run-dir", "/r", "--claim", "aaaaaaaa",
		"--shadow-dir", "/lib/tranche", "--governed", "--gpu-node", "/dev/nvidia0"}, hook.Args)
	must.Eq(t, append(hookEnv(), oneProcessor), hook.Env)

	must.NoError(t, driverCopies{binding: binding, libraries: shadow.Libraries{Dir: "/lib/tranche", ComputeOnly: true}}.Modify(spec))
	must.SliceContains(t, spec.Hooks.CreateContainer[2].Args, "--compute-only")
}
