package runtime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

// The GPUs that testdata/cdi names.
const (
	GPU0 = "GPU-11111111-1111-1111-1111-111111111111"
	GPU1 = "GPU-22222222-2222-2222-2222-222222222222"
)

// LibDir is where the drivers of these tests have their libraries, in the driver root as in the container.
const LibDir = "/usr/lib/x86_64-linux-gnu"

const driverVersion = "570.124.06"

// NodeConfig lays out a node in a temporary directory: a driver root with a CDI spec, shadow libraries, a hook. But
// for the shadow libraries, the files are no libraries; each holds a line that says what it stands for.
func NodeConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{
		DriverRoot: filepath.Join(dir, "root"),
		ShadowDir:  filepath.Join(dir, "lib"),
		HookPath:   filepath.Join(dir, "bin", "tranche-hook"),
		StateDir:   filepath.Join(dir, "state"),
		RunDir:     filepath.Join(dir, "run"),
	}.WithDefaults()
	claimtest.RemoveRegions(t, cfg.RunDir)
	for file, content := range map[string]string{
		filepath.Join(cfg.DriverRoot, LibDir, "libcuda.so."+driverVersion):      "driver's libcuda",
		filepath.Join(cfg.DriverRoot, LibDir, "libnvidia-ml.so."+driverVersion): "driver's libnvidia-ml",
		filepath.Join(cfg.DriverRoot, "usr/bin/nvidia-smi"):                     "nvidia-smi",
		cfg.HookPath: "hook",
	} {
		WriteFile(t, file, content+"\n")
	}
	shadowtest.Write(t, cfg.ShadowDir)
	for _, soname := range []string{shadow.CUDA, shadow.NVML} {
		real := strings.TrimSuffix(soname, "1") + driverVersion
		must.NoError(t, os.Symlink(real, filepath.Join(cfg.DriverRoot, LibDir, soname)))
	}
	WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json"), cfg.DriverRoot, nil)
	return cfg
}

// WriteCDISpec writes testdata/cdi/two-gpus.json for a driver root, changed by edit.
func WriteCDISpec(t *testing.T, file, root string, edit func(string) string) {
	t.Helper()
	template, err := os.ReadFile("testdata/cdi/two-gpus.json")
	must.NoError(t, err)
	content := strings.ReplaceAll(string(template), "@ROOT@", root)
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

func grantOf(id, uuid string, index int) Grant {
	return Grant{
		Claim:     &claim.Claim{ID: id, GPU: claim.GPU{UUID: uuid, Index: index}},
		RegionDir: "/run/tranche/claims/" + id,
	}
}

// containerSpec is a small spec such as a container manager writes.
func containerSpec() *specs.Spec {
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

func destinations(spec *specs.Spec) []string {
	var all []string
	for _, mount := range spec.Mounts {
		all = append(all, mount.Destination)
	}
	return all
}

func mountAt(t *testing.T, spec *specs.Spec, destination string) specs.Mount {
	t.Helper()
	var found []specs.Mount
	for _, mount := range spec.Mounts {
		if mount.Destination == destination {
			found = append(found, mount)
		}
	}
	must.Len(t, 1, found, must.Sprintf("mounts at %s, of %v", destination, destinations(spec)))
	return found[0]
}
