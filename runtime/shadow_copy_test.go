package runtime

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"tranche.dev/tranche/runtime/shadowtest"
)

func TestShadowOfCopy(t *testing.T) {
	for soname, want := range map[string]string{
		libcuda: "/.tranche/c/0012/driver-libcuda.so", libnvml: "/.tranche/c/0012/driver-libnvidia-ml.so",
	} {
		shadow := shadowtest.Library(t, soname, "$ORIGIN/"+BehindShadow(soname), "libc.so.6")
		content, err := ShadowOfCopy(shadow, soname, 12)
		must.NoError(t, err)
		file := filepath.Join(t.TempDir(), soname)
		must.NoError(t, os.WriteFile(file, content, 0o755))
		needed, err := dependencies(file)
		must.NoError(t, err)
		must.Eq(t, []string{want, "libc.so.6"}, needed)
	}
}

func TestShadowOfCopy_Refuses(t *testing.T) {
	shadow := shadowtest.Library(t, libcuda, "$ORIGIN/"+BehindShadow(libcuda))
	for name, content := range map[string][]byte{
		"the driver": shadowtest.Library(t, libcuda, "libc.so.6"),
		"two":        bytes.Repeat(shadow, 2),
		"nothing":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ShadowOfCopy(content, libcuda, 0)
			must.ErrorContains(t, err, "of one version")
		})
	}
	_, err := ShadowOfCopy(shadow, libcuda, 10_000) // the names would not be equally long
	must.ErrorContains(t, err, "of one version")
}

func TestShadowedCopies(t *testing.T) {
	other := specs.Hook{Path: "/nvidia", Args: []string{"nvidia-cdi-hook", "update-ldcache"}}
	spec := &specs.Spec{
		Hooks:  &specs.Hooks{CreateContainer: []specs.Hook{other}},
		Mounts: []specs.Mount{{Destination: ContainerDir}},
		Linux:  &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/fuse"}, {Path: "/dev/nvidia0"}}},
	}
	binding := bindingHooks{path: "/usr/bin/tranche-hook", stateDir: "/s", runDir: "/r", grants: []Grant{grantOf("aaaaaaaa", GPU0, 0)}}
	must.NoError(t, shadowedCopies{binding: binding, shadowDir: "/lib/tranche"}.Modify(spec))
	must.Eq(t, []string{ContainerDir, CopiesDir}, destinations(spec))
	mount := spec.Mounts[1]
	must.Eq(t, "tmpfs", mount.Type)
	must.SliceContainsSubset(t, mount.Options, []string{"ro", "nosuid", "nodev", "size=128m"})
	must.SliceNotContains(t, mount.Options, "noexec")
	must.Len(t, 2, spec.Hooks.CreateContainer)
	must.Eq(t, other, spec.Hooks.CreateContainer[0])
	hook := spec.Hooks.CreateContainer[1]
	must.Eq(t, []string{"tranche-hook", "createContainer", "--state-dir", "/s", "--run-dir", "/r", "--claim", "aaaaaaaa",
		"--shadow-dir", "/lib/tranche", "--gpu-node", "/dev/nvidia0"}, hook.Args)
	must.Eq(t, hookEnv(), hook.Env)
}
