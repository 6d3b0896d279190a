package install

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var update = flag.Bool("update", false, "write what is found to testdata/*/out")

const testRuntime = "/usr/bin/tranche-runtime"

// golden is a configuration as it is found on machines, in testdata/<engine>/<name>.in; what install makes of it is
// beside it, in .want. Uninstalling has to give back the former, byte for byte.
type golden struct {
	name, version string
	setDefault    bool
}

func TestInstallAndUninstall(t *testing.T) {
	cases := map[string][]golden{
		"containerd": {
			{name: "debian", version: "1.6"},
			{name: "debian-default", version: "1.6", setDefault: true},
			{name: "docker-ce", version: "1.7"},    // no version, CRI disabled
			{name: "default-dump", version: "1.7"}, // as `containerd config default` prints it
			{name: "default-dump-default", version: "1.7", setDefault: true},
			{name: "nvidia", version: "1.7"},
			{name: "nvidia-default", version: "1.7", setDefault: true},
			{name: "kubernetes", version: "1.7"}, // SystemdCgroup, base spec, comments
			{name: "v3", version: "2.0"},
			{name: "v3-default", version: "2.0", setDefault: true},
			{name: "v4", version: "2.4"},
			{name: "tabs", version: "1.6", setDefault: true},
			{name: "empty-lines", version: "1.6"},
			{name: "comments-only", version: "1.6"},
		},
		"docker": {
			{name: "empty-object"},
			{name: "plain"},
			{name: "nvidia"},
			{name: "nvidia-default", setDefault: true},
			{name: "tabs", setDefault: true},
			{name: "one-line"},
			{name: "one-line-default", setDefault: true},
			{name: "deep"},
		},
		"podman": {
			{name: "own-runtimes"},
			{name: "own-runtimes-default", setDefault: true},
			{name: "commented"},
		},
	}
	for engine, all := range cases {
		for _, c := range all {
			t.Run(engine+"/"+c.name, func(t *testing.T) { c.check(t, engine) })
		}
	}
}

func (c golden) check(t *testing.T, engine string) {
	base := filepath.Join("testdata", engine, c.name)
	before, err := os.ReadFile(base + ".in")
	must.NoError(t, err)
	path := filepath.Join(t.TempDir(), "config")
	must.NoError(t, os.WriteFile(path, before, 0o640))
	o := Options{RuntimePath: testRuntime, ConfigFile: path, SetDefault: c.setDefault}
	e := c.engine(engine)

	entry := applied(t, e.Install, o, Entry{})
	after, err := os.ReadFile(path)
	must.NoError(t, err)
	if *update {
		must.NoError(t, os.WriteFile(base+".want", after, 0o644))
	}
	expected, err := os.ReadFile(base + ".want")
	must.NoError(t, err)
	must.Eq(t, string(expected), string(after))
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o640, info.Mode().Perm())

	again, err := e.Install(t.Context(), o, entry)
	must.NoError(t, err)
	must.SliceEmpty(t, again.Changes)
	moved := o
	moved.RuntimePath = "/opt/tranche/bin/tranche-runtime"
	entry = applied(t, e.Install, moved, entry)
	must.FileContains(t, path, moved.RuntimePath)
	must.StrNotContains(t, read(t, path), testRuntime)

	applied(t, e.Uninstall, Options{ConfigFile: path}, entry)
	must.Eq(t, string(before), read(t, path))
}

func (c golden) engine(name string) Engine {
	if name == "containerd" {
		return Containerd{Version: c.version}
	}
	return Engines()[name]
}

type planner func(context.Context, Options, Entry) (*Plan, error)

// applied plans, applies, and gives what the record would hold, as it comes back from the file.
func applied(t *testing.T, plan planner, o Options, was Entry) Entry {
	t.Helper()
	p, err := plan(t.Context(), o, was)
	must.NoError(t, err)
	var out strings.Builder
	must.NoError(t, p.Apply(&out))
	text, err := json.Marshal(p.Entry)
	must.NoError(t, err)
	var entry Entry
	must.NoError(t, json.Unmarshal(text, &entry))
	return entry
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(text)
}
