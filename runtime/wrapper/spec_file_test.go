package wrapper

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

type modifierFunc func(*specs.Spec) error

func (f modifierFunc) Modify(spec *specs.Spec) error { return f(spec) }

const specWithUnknownFields = `{
  "ociVersion": "1.9.0",
  "futureSection": {"answer": 18446744073709551615},
  "process": {"args": ["sleep"], "cwd": "/", "env": ["A=1"], "futureField": [1, 2]},
  "mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "futureOption": "x"}],
  "linux": {"namespaces": [{"type": "future", "futureField": true}], "futureField": {"a": null}}
}`

func TestSpecFile_KeepsUnknownFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	runtimetest.WriteFile(t, path, specWithUnknownFields)
	file, err := readSpecFile(path)
	must.NoError(t, err)
	must.Eq(t, map[string]string{"A": "1"}, file.environment())
	must.NoError(t, file.modify(modifierFunc(func(spec *specs.Spec) error {
		spec.Process.Env = append(spec.Process.Env, "B=<2>")
		spec.Mounts = append(spec.Mounts, runtimetest.Bind("/a", "/b"))
		spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/h"}}}
		return nil
	})))
	must.NoError(t, file.write())

	want, err := decode([]byte(`{
  "ociVersion": "1.9.0",
  "futureSection": {"answer": 18446744073709551615},
  "process": {"args": ["sleep"], "cwd": "/", "env": ["A=1", "B=<2>"], "futureField": [1, 2]},
  "mounts": [
    {"destination": "/proc", "type": "proc", "source": "proc", "futureOption": "x"},
    {"destination": "/b", "type": "bind", "source": "/a", "options": ["ro", "rbind"]}
  ],
  "hooks": {"poststop": [{"path": "/h"}]},
  "linux": {"namespaces": [{"type": "future", "futureField": true}], "futureField": {"a": null}}
}`))
	must.NoError(t, err)
	content, err := os.ReadFile(path)
	must.NoError(t, err)
	must.StrContains(t, string(content), "18446744073709551615")
	got, err := decode(content)
	must.NoError(t, err)
	must.Eq(t, want, got)
	must.NoError(t, json.Unmarshal(content, &specs.Spec{}))
}

func TestSpecFile_ModeOwnerAndNothingLeft(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	runtimetest.WriteFile(t, path, specWithUnknownFields)
	must.NoError(t, os.Chmod(path, 0o640))
	wantUID := os.Getuid()
	if wantUID == 0 {
		wantUID = 1234
		must.NoError(t, os.Chown(path, 1234, 5678))
	}
	before, err := os.Stat(path)
	must.NoError(t, err)
	file, err := readSpecFile(path)
	must.NoError(t, err)
	must.NoError(t, file.write())

	after, err := os.Stat(path)
	must.NoError(t, err)
	must.False(t, os.SameFile(before, after), must.Sprint("written in place: a reader could have seen half of it"))
	must.Eq(t, before.Mode(), after.Mode())
	must.Eq(t, uint32(wantUID), after.Sys().(*syscall.Stat_t).Uid)
	must.Eq(t, before.Sys().(*syscall.Stat_t).Gid, after.Sys().(*syscall.Stat_t).Gid)
	left, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 1, left)
}

func TestReadSpecFile_Errors(t *testing.T) {
	cases := []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"missing", func(*testing.T, string) {}, "no such file"},
		{"not JSON", func(t *testing.T, path string) { runtimetest.WriteFile(t, path, "ociVersion: 1") }, "no OCI spec"},
		{"other JSON", func(t *testing.T, path string) { runtimetest.WriteFile(t, path, `{"mounts": "all"}`) }, "no OCI spec"},
		{"a FIFO", func(t *testing.T, path string) { must.NoError(t, syscall.Mkfifo(path, 0o600)) }, "no regular file"},
		{"a directory", func(t *testing.T, path string) { must.NoError(t, os.Mkdir(path, 0o700)) }, "no regular file"},
		{"too large", func(t *testing.T, path string) {
			runtimetest.WriteFile(t, path, "{}")
			must.NoError(t, os.Truncate(path, bundle.MaxSpecBytes+1))
		}, "larger than 16 MiB"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.json")
			tc.make(t, path)
			_, err := readSpecFile(path)
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, path)
		})
	}
}

// What is too large is not even read: it would be in memory before it is refused.
func TestReadSpecFile_ReadsNoMoreThanItTakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	runtimetest.WriteFile(t, path, "{}")
	must.NoError(t, os.Truncate(path, 512<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readSpecFile(path)
	runtime.ReadMemStats(&after)
	must.ErrorContains(t, err, "larger than 16 MiB")
	must.Less(t, 256<<20, after.TotalAlloc-before.TotalAlloc) // a buffer that grows is counted each time
}
