package edit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

func TestShadowLibraries(t *testing.T) {
	node := testNode(t)
	cuda := filepath.Join(node.DriverRoot, runtimetest.LibDir, "libcuda.so."+runtimetest.DriverVersion)
	cudaLink := filepath.Join(node.DriverRoot, runtimetest.LibDir, shadow.CUDA)
	nvml := filepath.Join(node.DriverRoot, runtimetest.LibDir, "libnvidia-ml.so."+runtimetest.DriverVersion)
	shadowCUDA := filepath.Join(node.ShadowDir, shadow.CUDA)
	shadowNVML := filepath.Join(node.ShadowDir, shadow.NVML)
	type layout [][2]string // source, destination

	cases := []struct {
		name   string
		mounts []specs.Mount
		want   layout
	}{{
		name:   "nothing to shadow",
		mounts: []specs.Mount{runtimetest.Bind("/srv", "/data"), runtimetest.Bind("/x/libcudart.so.12", "/usr/lib/libcudart.so.12")},
		want:   layout{{"/srv", "/data"}, {"/x/libcudart.so.12", "/usr/lib/libcudart.so.12"}},
	}, {
		name: "versioned names, and the rest stays in its order",
		mounts: []specs.Mount{
			runtimetest.Bind("/a", "/a"),
			runtimetest.Bind(cuda, "/usr/lib64/libcuda.so.570.124.06"),
			runtimetest.Bind("/b", "/b"),
			runtimetest.Bind(nvml, "/usr/lib64/libnvidia-ml.so.570.124.06"),
		},
		want: layout{
			{"/a", "/a"},
			{"/b", "/b"},
			{cuda, "/usr/lib64/.tranche/driver-libcuda.so"},
			{shadowCUDA, "/usr/lib64/libcuda.so.570.124.06"},
			{nvml, "/usr/lib64/.tranche/driver-libnvidia-ml.so"},
			{shadowNVML, "/usr/lib64/libnvidia-ml.so.570.124.06"},
		},
	}, {
		name:   "SONAME and plain name",
		mounts: []specs.Mount{runtimetest.Bind(cuda, "/l/libcuda.so.1"), runtimetest.Bind(cuda, "/m/libcuda.so")},
		want: layout{
			{cuda, "/l/.tranche/driver-libcuda.so"},
			{shadowCUDA, "/l/libcuda.so.1"},
			{cuda, "/m/.tranche/driver-libcuda.so"},
			{shadowCUDA, "/m/libcuda.so"},
		},
	}, {
		name: "copies in several directories",
		mounts: []specs.Mount{
			runtimetest.Bind(cuda, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
			runtimetest.Bind("/d/i386/libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1"),
		},
		want: layout{
			{cuda, "/usr/lib/x86_64-linux-gnu/.tranche/driver-libcuda.so"},
			{shadowCUDA, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"},
			{"/d/i386/libcuda.so.1", "/usr/lib/i386-linux-gnu/.tranche/driver-libcuda.so"},
			{shadowCUDA, "/usr/lib/i386-linux-gnu/libcuda.so.1"},
		},
	}, {
		name:   "two names of one file in one directory",
		mounts: []specs.Mount{runtimetest.Bind(cuda, "/l/libcuda.so.570.124.06"), runtimetest.Bind(cudaLink, "/l/libcuda.so.1")},
		want: layout{
			{cuda, "/l/.tranche/driver-libcuda.so"},
			{shadowCUDA, "/l/libcuda.so.570.124.06"},
			{shadowCUDA, "/l/libcuda.so.1"},
		},
	}, {
		name:   "a destination with detours",
		mounts: []specs.Mount{runtimetest.Bind(cuda, "usr/lib//../lib/libcuda.so.1")},
		want:   layout{{cuda, "/usr/lib/.tranche/driver-libcuda.so"}, {shadowCUDA, "/usr/lib/libcuda.so.1"}},
	}, {
		name:   "not a bind mount",
		mounts: []specs.Mount{{Type: "tmpfs", Source: "tmpfs", Destination: "/odd/libcuda.so.d"}},
		want:   layout{{"tmpfs", "/odd/libcuda.so.d"}},
	}}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := &specs.Spec{Mounts: tc.mounts}
			must.NoError(t, shadowLibraries{shadow.Libraries{Dir: node.ShadowDir}}.Modify(spec))
			var got layout
			for _, mount := range spec.Mounts {
				got = append(got, [2]string{mount.Source, mount.Destination})
				if mount.Source == shadowCUDA || mount.Source == shadowNVML {
					must.Eq(t, []string{"ro", "nosuid", "nodev", "bind", "private"}, mount.Options)
				}
			}
			must.Eq(t, tc.want, got)
		})
	}
}

func TestShadowLibraries_Governed(t *testing.T) {
	node := testNode(t)
	spec := &specs.Spec{Mounts: []specs.Mount{
		runtimetest.Bind("/d/libcuda.so.570", "/l/libcuda.so.1"), runtimetest.Bind("/d/libnvidia-ml.so.570", "/l/libnvidia-ml.so.1"),
	}}
	must.NoError(t, shadowLibraries{shadow.Libraries{Dir: node.ShadowDir, Governed: true}}.Modify(spec))
	must.Eq(t, filepath.Join(node.ShadowDir, "governed", shadow.CUDA), spec.Mounts[1].Source)
	must.Eq(t, "/l/libcuda.so.1", spec.Mounts[1].Destination)
	must.Eq(t, filepath.Join(node.ShadowDir, shadow.NVML), spec.Mounts[3].Source)
}

func TestShadowLibraries_ComputeOnly(t *testing.T) {
	node := testNode(t)
	nvml := runtimetest.Bind("/d/libnvidia-ml.so.570", "/l/libnvidia-ml.so.1")
	spec := &specs.Spec{Mounts: []specs.Mount{runtimetest.Bind("/d/libcuda.so.570", "/l/libcuda.so.1"), nvml}}
	must.NoError(t, shadowLibraries{shadow.Libraries{Dir: node.ShadowDir, ComputeOnly: true}}.Modify(spec))
	must.Eq(t, []string{"/l/libnvidia-ml.so.1", "/l/.tranche/driver-libcuda.so", "/l/libcuda.so.1"}, runtimetest.Destinations(spec))
	must.Eq(t, nvml, spec.Mounts[0])
	must.Eq(t, filepath.Join(node.ShadowDir, "compute", shadow.CUDA), spec.Mounts[2].Source)
}

func TestShadowLibraries_Errors(t *testing.T) {
	cuda := runtimetest.Bind("/driver/libcuda.so.570", "/usr/lib/libcuda.so.570")

	t.Run("shadow missing", func(t *testing.T) {
		node := testNode(t)
		must.NoError(t, os.Remove(filepath.Join(node.ShadowDir, shadow.CUDA)))
		err := shadowLibraries{shadow.Libraries{Dir: node.ShadowDir}}.Modify(&specs.Spec{Mounts: []specs.Mount{cuda}})
		must.ErrorContains(t, err, filepath.Join(node.ShadowDir, shadow.CUDA))
		must.ErrorContains(t, err, "shadow_dir")
	})
	t.Run("shadow is no file", func(t *testing.T) {
		dir := t.TempDir()
		must.NoError(t, os.Mkdir(filepath.Join(dir, shadow.CUDA), 0o755))
		err := shadowLibraries{shadow.Libraries{Dir: dir}}.Modify(&specs.Spec{Mounts: []specs.Mount{cuda}})
		must.ErrorContains(t, err, "no regular file")
	})
	t.Run("the driver as shadow", func(t *testing.T) {
		node := testNode(t)
		driver := shadowtest.Library(t, shadow.CUDA, "libc.so.6")
		file := filepath.Join(node.ShadowDir, shadow.CUDA)
		must.NoError(t, os.WriteFile(file, driver, 0o755))
		err := shadowLibraries{shadow.Libraries{Dir: node.ShadowDir}}.Modify(&specs.Spec{Mounts: []specs.Mount{cuda}})
		must.ErrorContains(t, err, file+" is no shadow library")
		must.ErrorContains(t, err, "shadow_dir")
	})
	t.Run("two libraries for one place", func(t *testing.T) {
		node := testNode(t)
		other := runtimetest.Bind("/job/libcuda.so.535", "/usr/lib/libcuda.so.535")
		err := shadowLibraries{shadow.Libraries{Dir: node.ShadowDir}}.Modify(&specs.Spec{Mounts: []specs.Mount{cuda, other}})
		must.ErrorContains(t, err, "/driver/libcuda.so.570")
		must.ErrorContains(t, err, "/job/libcuda.so.535")
	})
}
