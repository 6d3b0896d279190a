package request

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// inject gives a container CDI devices as an engine does, from files on a node, and returns its environment.
func inject(t *testing.T, sliceBytes uint64, most int, env []string, devices ...string) map[string]string {
	t.Helper()
	spec, err := CDISpec(sliceBytes, most)
	must.NoError(t, err)
	content, err := json.Marshal(spec)
	must.NoError(t, err)
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, CDISpecFile), content, 0o644))
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir))
	must.NoError(t, err)
	must.MapEmpty(t, cache.GetErrors())
	container := &specs.Spec{Process: &specs.Process{Env: env}}
	_, err = cache.InjectDevices(container, devices...)
	must.NoError(t, err)
	return environment(container.Process.Env)
}

func TestCDISpec(t *testing.T) {
	spec, err := CDISpec(512<<20, 5)
	must.NoError(t, err)
	must.Eq(t, "tranche.dev/slice", spec.Kind)
	var names []string
	for _, d := range spec.Devices {
		names = append(names, d.Name)
	}
	must.Eq(t, []string{"512MiB", "1GiB", "1536MiB", "2GiB", "2560MiB"}, names)

	got, requested, err := Parse(inject(t, 512<<20, 5, nil, "tranche.dev/slice=1536MiB"), nil)
	must.NoError(t, err)
	must.True(t, requested)
	must.Eq(t, Request{MemoryBytes: 1536 << 20}, got)
}

// CDI overwrites a variable that is there: what else was requested for must be seen all the same.
func TestCDISpec_Disagreement(t *testing.T) {
	_, _, err := Parse(inject(t, 1<<30, 140, []string{MemoryEnv + "=4GiB"}, "tranche.dev/slice=8GiB"), nil)
	must.ErrorContains(t, err, "two different things")
	_, _, err = Parse(inject(t, 1<<30, 140, nil, "tranche.dev/slice=8GiB", "tranche.dev/slice=4GiB"), nil)
	must.ErrorContains(t, err, "two different things")
}
