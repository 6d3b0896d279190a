// Package runtimetest lays out nodes and specs for tests of the runtime's packages.
package runtimetest

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

// The GPUs in the CDI spec of a layout.
const (
	GPU0 = "GPU-11111111-1111-1111-1111-111111111111"
	GPU1 = "GPU-22222222-2222-2222-2222-222222222222"
)

// LibDir is where the drivers of these tests have their libraries, in the driver root as in the container.
const LibDir = "/usr/lib/x86_64-linux-gnu"

// DriverVersion is the version in the names of the driver's libraries.
const DriverVersion = "570.124.06"

//go:embed two-gpus.json
var twoGPUs string

// Layout is the paths of a node in a temporary directory.
type Layout struct {
	DriverRoot, ShadowDir, HookPath, StateDir, RunDir string
}

// CDISpecDirs are the directories that are searched for CDI specs.
func (l Layout) CDISpecDirs() []string {
	return []string{filepath.Join(l.DriverRoot, "etc/cdi"), filepath.Join(l.DriverRoot, "var/run/cdi")}
}

// NewLayout makes a node: a driver root with a CDI spec, shadow libraries, a hook. Except for the shadow libraries, the
// files hold a line that says what they stand for.
func NewLayout(t *testing.T) Layout {
	t.Helper()
	dir := t.TempDir()
	l := Layout{
		DriverRoot: filepath.Join(dir, "root"),
		ShadowDir:  filepath.Join(dir, "lib"),
		HookPath:   filepath.Join(dir, "bin", "tranche-hook"),
		StateDir:   filepath.Join(dir, "state"),
		RunDir:     filepath.Join(dir, "run"),
	}
	claimtest.RemoveRegions(t, l.RunDir)
	for file, content := range map[string]string{
		filepath.Join(l.DriverRoot, LibDir, "libcuda.so."+DriverVersion):      "driver's libcuda",
		filepath.Join(l.DriverRoot, LibDir, "libnvidia-ml.so."+DriverVersion): "driver's libnvidia-ml",
		filepath.Join(l.DriverRoot, "usr/bin/nvidia-smi"):                     "nvidia-smi",
		l.HookPath: "hook",
	} {
		WriteFile(t, file, content+"\n")
	}
	shadowtest.Write(t, l.ShadowDir)
	for _, soname := range []string{shadow.CUDA, shadow.NVML} {
		real := strings.TrimSuffix(soname, "1") + DriverVersion
		must.NoError(t, os.Symlink(real, filepath.Join(l.DriverRoot, LibDir, soname)))
	}
	WriteCDISpec(t, filepath.Join(l.DriverRoot, "etc/cdi/gpus.json"), l.DriverRoot, nil)
	return l
}

// WriteCDISpec writes a CDI spec of two GPUs for a driver root, changed by edit.
func WriteCDISpec(t *testing.T, file, root string, edit func(string) string) {
	t.Helper()
	content := strings.ReplaceAll(twoGPUs, "@ROOT@", root)
	if edit != nil {
		edited := edit(content)
		must.NotEq(t, content, edited, must.Sprint("the edit did nothing"))
		content = edited
	}
	WriteFile(t, file, content)
}

// WriteFile writes a file and the directories above it.
func WriteFile(t *testing.T, file, content string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.NoError(t, os.WriteFile(file, []byte(content), 0o755))
}

// ContainerSpec is a small spec such as a container manager writes.
func ContainerSpec() *specs.Spec {
	return &specs.Spec{
		Version: "1.1.0",
		Process: &specs.Process{Args: []string{"sleep"}, Env: []string{"PATH=/bin", "LD_PRELOAD=/job/own.so"}},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/data/deep/down/below", Type: "bind", Source: "/srv/data", Options: []string{"rbind", "rw"}},
		},
		Linux: &specs.Linux{},
	}
}

// Bind is a bind mount.
func Bind(source, destination string) specs.Mount {
	return specs.Mount{Destination: destination, Type: "bind", Source: source, Options: []string{"ro", "rbind"}}
}

// Destinations lists the destinations of a spec's mounts.
func Destinations(spec *specs.Spec) []string {
	var all []string
	for _, mount := range spec.Mounts {
		all = append(all, mount.Destination)
	}
	return all
}

// DevicePaths lists the paths of a spec's devices.
func DevicePaths(spec *specs.Spec) []string {
	var paths []string
	for _, device := range spec.Linux.Devices {
		paths = append(paths, device.Path)
	}
	return paths
}

// MountAt returns the one mount at a destination.
func MountAt(t *testing.T, spec *specs.Spec, destination string) specs.Mount {
	t.Helper()
	var found []specs.Mount
	for _, mount := range spec.Mounts {
		if mount.Destination == destination {
			found = append(found, mount)
		}
	}
	must.Len(t, 1, found, must.Sprintf("mounts at %s, of %v", destination, Destinations(spec)))
	return found[0]
}

// LinkToHook is the path of one of NVIDIA's hooks under another name.
func LinkToHook(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	link := filepath.Join(dir, "10-gpu")
	WriteFile(t, filepath.Join(dir, "nvidia-container-toolkit"), "")
	must.NoError(t, os.Symlink("nvidia-container-toolkit", link))
	return link
}
