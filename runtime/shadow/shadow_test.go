package shadow_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

func TestCheck(t *testing.T) {
	const behindCUDA, behindNVML = "$ORIGIN/.tranche/driver-libcuda.so", "$ORIGIN/.tranche/driver-libnvidia-ml.so"
	cases := []struct {
		name         string
		soname       string
		dependencies []string
		ok           bool
	}{
		{"libcuda", shadow.CUDA, []string{behindCUDA, "libc.so.6"}, true},
		{"libnvidia-ml", shadow.NVML, []string{behindNVML, "libc.so.6"}, true},
		{"no dependency", shadow.CUDA, nil, false},
		{"the driver's dependencies", shadow.CUDA, []string{"libm.so.6", "libc.so.6"}, false},
		{"the driver's library comes second", shadow.CUDA, []string{"libc.so.6", behindCUDA}, false},
		{"the driver's library under its SONAME", shadow.CUDA, []string{"$ORIGIN/.tranche/libcuda.so.1"}, false},
		{"the shadow of another library", shadow.CUDA, []string{behindNVML}, false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			content := shadowtest.Library(t, tc.soname, tc.dependencies...)
			file := filepath.Join(t.TempDir(), tc.soname)
			must.NoError(t, os.WriteFile(file, content, 0o755))
			err := shadow.Check(file, tc.soname)
			if tc.ok {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, file+" is no shadow library")
		})
	}
	t.Run("text", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), shadow.CUDA)
		must.NoError(t, os.WriteFile(file, []byte("no library\n"), 0o644))
		must.ErrorContains(t, shadow.Check(file, shadow.CUDA), "no shadow library "+file)
	})
}

func TestVersion(t *testing.T) {
	file := filepath.Join(t.TempDir(), shadow.CUDA)
	must.NoError(t, os.WriteFile(file, shadowtest.OfVersion(t, "v1.2.3+g0123abcd"), 0o755))
	version, err := shadow.Version(file)
	must.NoError(t, err)
	must.Eq(t, "v1.2.3+g0123abcd", version)

	must.NoError(t, os.WriteFile(file, shadowtest.Library(t, shadow.CUDA), 0o755))
	_, err = shadow.Version(file)
	must.ErrorContains(t, err, "no section .tranche.version")
}

func TestLibraries(t *testing.T) {
	for _, tc := range []struct {
		libraries shadow.Libraries
		cuda      string
		sonames   []string
	}{
		{shadow.Libraries{}, "libcuda.so.1", []string{shadow.CUDA, shadow.NVML}},
		{shadow.Libraries{Governed: true}, "governed/libcuda.so.1", []string{shadow.CUDA, shadow.NVML}},
		{shadow.Libraries{ComputeOnly: true}, "compute/libcuda.so.1", []string{shadow.CUDA}},
		{shadow.Libraries{Governed: true, ComputeOnly: true}, "compute/libcuda.so.1", []string{shadow.CUDA}},
	} {
		must.Eq(t, tc.cuda, tc.libraries.Path(shadow.CUDA))
		must.Eq(t, tc.sonames, tc.libraries.SONAMEs())
		must.Eq(t, shadow.NVML, tc.libraries.Path(shadow.NVML))
		must.SliceContains(t, shadow.Files(), tc.cuda)
	}
}
