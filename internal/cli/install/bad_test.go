package install

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// Whatever cannot be edited is told, and stays as it is.
func TestBadConfigurations(t *testing.T) {
	for name, c := range map[string]struct{ engine, text, says string }{
		"toml syntax":         {"containerd", "version = 2\n[plugins\n", "is no TOML: line 2"},
		"toml twice":          {"containerd", "version = 2\nversion = 2\n", "is no TOML"},
		"version of tomorrow": {"containerd", "version = 9\n", "is of version 9, and only versions up to 4 are known"},
		"version as text":     {"containerd", "version = \"2\"\n", "is no TOML"},
		"import gone":         {"containerd", "version = 2\nimports = [\"/nowhere/x.toml\"]\n", "which is not there"},
		"inline tables": {
			"containerd", "version = 2\nplugins = { \"io.containerd.grpc.v1.cri\" = { sandbox_image = \"x\" } }\n",
			"cannot be edited",
		},
		"another tranche": {
			"containerd", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.tranche]\nruntime_type = \"x\"\n",
			"that tranche install did not write",
		},
		"binary":                 {"containerd", "\x00\x01\xff", "is no TOML"},
		"json syntax":            {"docker", "{\n  \"a\": 1,\n}\n", "is no JSON object in line 3"},
		"json with comments":     {"docker", "{\n  // mine\n}\n", "is no JSON object in line 2"},
		"json array":             {"docker", "[]", "is no JSON object"},
		"json twice":             {"docker", `{"debug": true, "debug": false}`, `has "debug" twice`},
		"runtimes as a list":     {"docker", `{"runtimes": []}`, `"runtimes" in it is no JSON object`},
		"another docker tranche": {"docker", `{"runtimes": {"tranche": {"path": "x", "args": []}}}`, "did not write"},
		"truncated":              {"docker", `{"runtimes": {"nv`, "is no JSON object"},
		"podman syntax":          {"podman", "[engine\n", "is no TOML: line 1"},
		"another podman tranche": {"podman", "[engine.runtimes]\ntranche = [\"/x\"]\n", "did not write"},
		"podman inline":          {"podman", "engine = { runtime = \"crun\" }\n", "cannot be edited"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "config"), c.text)
			_, err := Engines()[c.engine].Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
			must.ErrorContains(t, err, c.says)
			must.ErrorContains(t, err, path)
			must.Eq(t, c.text, read(t, path))
		})
	}
}

// A link, a pipe or a directory is no configuration to write.
func TestNoPlainFile(t *testing.T) {
	dir := t.TempDir()
	target := write(t, filepath.Join(dir, "target"), "{}")
	must.NoError(t, os.Symlink(target, filepath.Join(dir, "link")))
	must.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "dangling")))
	must.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "directory"), 0o755))
	for name, says := range map[string]string{
		"link": "is a link to " + target, "dangling": "is a link to", "pipe": "no regular file", "directory": "no regular file",
	} {
		for engine := range map[string]bool{"containerd": true, "docker": true, "podman": true} {
			o := Options{RuntimePath: testRuntime, ConfigFile: filepath.Join(dir, name)}
			_, err := Engines()[engine].Install(t.Context(), o, Entry{})
			must.ErrorContains(t, err, says, must.Sprint(engine, name))
		}
	}
	must.Eq(t, "{}", read(t, target))
}

// Nobody's edit is lost that came between the plan and the change, and what a plan did before it failed is taken back.
func TestChangedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), write(t, filepath.Join(dir, "second"), "{}")
	plan := &Plan{}
	for _, path := range []string{first, second} {
		p, err := Docker{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
		must.NoError(t, err)
		plan.Changes = append(plan.Changes, p.Changes...)
	}
	write(t, second, `{"debug": true}`)
	err := plan.Apply(os.Stderr)
	must.ErrorContains(t, err, "was changed by somebody else just now")
	must.Eq(t, `{"debug": true}`, read(t, second))
	must.FileNotExists(t, first)
}

// The file keeps its mode and its owner, and what it was is kept under a name that no engine reads.
func TestModeOwnerAndBackup(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "daemon.json"), "{}\n")
	must.NoError(t, os.Chmod(path, 0o604))
	owner := os.Geteuid()
	if owner == 0 {
		owner = 4242
		must.NoError(t, os.Chown(path, owner, 4343))
	}
	plan, err := Docker{}.Install(t.Context(), Options{RuntimePath: testRuntime, ConfigFile: path}, Entry{})
	must.NoError(t, err)
	backup, err := plan.Changes[0].Apply(time.Now())
	must.NoError(t, err)
	for file, text := range map[string]string{backup: "{}\n", path: string(plan.Changes[0].after)} {
		must.Eq(t, text, read(t, file))
		var st unix.Stat_t
		must.NoError(t, unix.Stat(file, &st))
		must.Eq(t, 0o604, st.Mode&0o777)
		must.Eq(t, owner, int(st.Uid))
	}
	must.StrNotContains(t, filepath.Ext(backup), "json")
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	must.NoError(t, err)
	must.Len(t, 2, left, must.Sprint("a temporary file is left"))
}
