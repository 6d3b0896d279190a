package cli

import (
	"os"
	"path/filepath"
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
