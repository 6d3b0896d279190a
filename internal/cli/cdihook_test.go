package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// The command is NVIDIA's: it has the hooks that generated specs call for, and lets those pass that it has never heard
// of, since a spec may be newer than it.
func TestCDIHook(t *testing.T) {
	a := testApp(nil)
	must.Zero(t, a.main([]string{"cdi-hook", "noop"}))
	must.Zero(t, a.main([]string{"cdi-hook", "of-the-future", "--flag", "value"}))

	bundle := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root": {"path": "rootfs"}}`), 0o644))
	state := filepath.Join(bundle, "state.json")
	must.NoError(t, os.WriteFile(state, []byte(`{"id": "c1", "bundle": "`+bundle+`"}`), 0o644))
	must.Zero(t, a.main([]string{
		"cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so", "--container-spec", state,
	}))
	target, err := os.Readlink(filepath.Join(bundle, "rootfs/usr/lib/libcuda.so"))
	must.NoError(t, err)
	must.Eq(t, "libcuda.so.1", target)
}

// Several hooks in one process, of which each reads the container's state.
func TestCDIHook_Batch(t *testing.T) {
	bundle := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"root": {"path": "rootfs"}}`), 0o644))
	run := func(state string, calls ...string) (string, error) {
		cmd := exec.Command(os.Args[0], append([]string{"cdi-hook", "batch"}, calls...)...)
		cmd.Env = append(os.Environ(), "TRANCHE_TEST_CLI=real")
		cmd.Stdin = strings.NewReader(state)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	state := `{"id": "c1", "bundle": "` + bundle + `"}`
	link := func(name string) string { return `["create-symlinks", "--link", "target::/` + name + `"]` }
	output, err := run(state, link("a"), `["of-the-future"]`, link("b"))
	must.NoError(t, err, must.Sprint(output))
	for _, name := range []string{"a", "b"} {
		target, err := os.Readlink(filepath.Join(bundle, "rootfs", name))
		must.NoError(t, err)
		must.Eq(t, "target", target)
	}
	for name, tc := range map[string]struct{ state, call, want string }{
		"a hook that fails": {`{"id": "c1", "bundle": "/nonexistent"}`, link("c"), "create-symlinks"},
		"no JSON":           {state, "create-symlinks", "read the hook"},
		"a huge state":      {strings.Repeat(" ", maxStateBytes+1), link("c"), "larger than 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			output, err := run(tc.state, tc.call)
			must.Error(t, err)
			must.StrContains(t, output, tc.want)
		})
	}
}
