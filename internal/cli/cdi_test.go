package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/runtime"
)

func (n *statusNode) cdi(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	n.stdout, n.stderr = &out, &errs
	code = n.main(append([]string{"cdi", "generate"}, args...))
	return code, out.String(), errs.String()
}

func TestCDIGenerate(t *testing.T) {
	small := nvmltest.H200(1)
	small.MemoryBytes = 24 << 30
	n := newNode(t, nvmltest.New(nvmltest.H200(0), small))
	config := filepath.Join(t.TempDir(), "config.toml")
	must.NoError(t, os.WriteFile(config, []byte("slice_memory = \"2GiB\"\n"), 0o600))
	n.environ = append(n.environ, runtime.ConfigEnv+"="+config)
	dir := filepath.Join(t.TempDir(), "run/cdi")
	file := filepath.Join(dir, "tranche.dev-slice.json")

	code, out, stderr := n.cdi("--output", file)
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.Eq(t, "Wrote "+file+".\n", out)
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir))
	must.NoError(t, err)
	must.MapEmpty(t, cache.GetErrors())
	must.Len(t, 70, cache.ListDevices(), must.Sprint("the largest GPU has 70 slices"))
	must.NotNil(t, cache.GetDevice("tranche.dev/slice=2GiB"))
	must.NotNil(t, cache.GetDevice("tranche.dev/slice=140GiB"))
	info, err := os.Stat(file)
	must.NoError(t, err)
	must.Eq(t, 0o644, info.Mode().Perm(), must.Sprint("engines without root read it, too"))

	code, out, _ = n.cdi("--output", "-", "--slice-memory", "512MiB")
	must.Eq(t, 0, code)
	var spec cdispecs.Spec
	must.NoError(t, json.Unmarshal([]byte(out), &spec))
	must.Eq(t, "512MiB", spec.Devices[0].Name)
}

func TestCDIGenerate_Refuses(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	code, _, stderr := n.cdi("--output", "-", "--slice-memory", "lots")
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, `--slice-memory: "lots"`)
	_, _, stderr = n.cdi("--output", "-", "--slice-memory", "1TiB")
	must.StrContains(t, stderr, "no GPU with room for a slice of 1024GiB")
	_, _, stderr = n.cdi("--output", t.TempDir())
	must.StrContains(t, stderr, "--output: write the CDI specification: ")
	must.StrHasSuffix(t, "; name a file, or \"-\" to print\n", stderr)
	_, _, stderr = newNode(t, nvmltest.New()).cdi("--output", "-")
	must.StrContains(t, stderr, "no GPU with room")
}
