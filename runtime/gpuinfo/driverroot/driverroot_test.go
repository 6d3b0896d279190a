package driverroot

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shoenig/test/must"
)

// elfHeader is the start of a shared library as far as FindLibrary looks.
func elfHeader(class byte, machine uint16) []byte {
	header := make([]byte, 64)
	copy(header, "\x7fELF")
	header[4], header[5] = class, 1
	binary.LittleEndian.PutUint16(header[18:], machine)
	return header
}

func native() []byte { return elfHeader(2, platforms[runtime.GOARCH].machine) }

func write(t *testing.T, root, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(root, name)
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, content, 0o644))
	return path
}

func link(t *testing.T, root, name, target string) {
	t.Helper()
	path := filepath.Join(root, name)
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.Symlink(target, path))
}

func TestFindLibrary(t *testing.T) {
	multiarch := filepath.Join("/usr/lib", platforms[runtime.GOARCH].triplet)
	cases := []struct {
		name   string
		layout func(t *testing.T, root string)
		want   string // in the root
	}{
		{
			name: "relative link beside the real file",
			layout: func(t *testing.T, root string) {
				write(t, root, multiarch+"/libcuda.so.570.1", native())
				link(t, root, multiarch+"/libcuda.so.1", "libcuda.so.570.1")
			},
			want: multiarch + "/libcuda.so.570.1",
		},
		{
			name: "absolute links stay inside the root",
			layout: func(t *testing.T, root string) {
				write(t, root, "/opt/driver/libcuda.so.570.1", native())
				link(t, root, "/usr/lib64/libcuda.so.1", "/etc/alternatives/libcuda.so.1")
				link(t, root, "/etc/alternatives/libcuda.so.1", "/opt/driver/libcuda.so.570.1")
			},
			want: "/opt/driver/libcuda.so.570.1",
		},
		{
			name: "links cannot climb out of the root",
			layout: func(t *testing.T, root string) {
				write(t, root, "/opt/libcuda.so.570.1", native())
				link(t, root, "/usr/lib64/libcuda.so.1", "../../../../../../opt/libcuda.so.570.1")
			},
			want: "/opt/libcuda.so.570.1",
		},
		{
			name: "a 32-bit library is passed over",
			layout: func(t *testing.T, root string) {
				write(t, root, multiarch+"/libcuda.so.1", elfHeader(1, 3))
				write(t, root, "/usr/lib64/libcuda.so.1", elfHeader(1, platforms[runtime.GOARCH].machine))
				write(t, root, "/lib64/libcuda.so.1", elfHeader(2, 0))
				write(t, root, "/usr/lib/libcuda.so.1", native())
			},
			want: "/usr/lib/libcuda.so.1",
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			tc.layout(t, root)
			got, err := FindLibrary(root, CUDALibrary)
			must.NoError(t, err)
			must.Eq(t, filepath.Join(root, tc.want), got)
		})
	}
}

func TestFindLibrary_notFound(t *testing.T) {
	root := t.TempDir()
	write(t, root, "/usr/lib64/libcuda.so.1", []byte("this is no library, whatever its name says"))
	write(t, root, "/usr/lib/libcuda.so.1", elfHeader(1, 3))
	must.NoError(t, os.MkdirAll(filepath.Join(root, "/lib64/libcuda.so.1"), 0o755))

	_, err := FindLibrary(root, CUDALibrary)
	var missing *NotFoundError
	must.True(t, errors.As(err, &missing))
	must.Eq(t, root, missing.Root)
	must.Len(t, len(LibraryDirs()), missing.Searched)
	must.SliceContains(t, missing.Searched, "/usr/lib64/libcuda.so.1: not an ELF file")
	must.SliceContains(t, missing.Searched, "/usr/lib/libcuda.so.1: not a library for "+runtime.GOARCH)
	must.SliceContains(t, missing.Searched, "/lib64/libcuda.so.1: not a regular file")
	must.SliceContains(t, missing.Searched, "/usr/local/lib/libcuda.so.1")
	must.StrContains(t, err.Error(), "no libcuda.so.1 in the driver root "+root+" (searched /usr/lib64/libcuda.so.1: not an ELF file, ")
	must.StrContains(t, err.Error(), "not a regular file, /usr/lib/libcuda.so.1: not a library for "+runtime.GOARCH+" and ")
	must.StrContains(t, err.Error(), "install the NVIDIA driver, or set the driver root to where it is")
}

func TestFindLibrary_noRoot(t *testing.T) {
	_, err := FindLibrary("/nonexistent-driver-root", NVMLLibrary)
	must.StrContains(t, err.Error(), "no libnvidia-ml.so.1 in the driver root /nonexistent-driver-root (searched /usr/lib/")
	must.StrContains(t, err.Error(), "other places): install the NVIDIA driver")
	must.Less(t, 250, len(err.Error()))
}

func TestFindProgram(t *testing.T) {
	root := t.TempDir()
	write(t, root, "/usr/sbin/nvidia-smi", []byte("not to be executed"))
	_, err := FindProgram(root, "nvidia-smi")
	var missing *NotFoundError
	must.True(t, errors.As(err, &missing))
	must.SliceContains(t, missing.Searched, "/usr/sbin/nvidia-smi: not to be executed: permission denied")
	must.SliceContains(t, missing.Searched, "/usr/bin/nvidia-smi")

	program := write(t, root, "/opt/driver/nvidia-smi", []byte("#!/bin/sh"))
	must.NoError(t, os.Chmod(program, 0o755))
	link(t, root, "/usr/bin/nvidia-smi", "/opt/driver/nvidia-smi")
	got, err := FindProgram(root, "nvidia-smi")
	must.NoError(t, err)
	must.Eq(t, program, got)
}
