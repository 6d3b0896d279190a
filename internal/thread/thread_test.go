package thread

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/mounttest"
	"github.com/tranche-gpu/tranche/internal/needs"
)

func TestRunWithMounts(t *testing.T) {
	needs.Root(t, "to mount")
	dir := t.TempDir()
	before, err := os.Readlink("/proc/self/ns/mnt")
	must.NoError(t, err)
	for range 50 { // on whichever thread, the first one included
		var inside []string
		must.NoError(t, RunWithMounts(func() error {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
				return err
			}
			inside = append(inside, dir)
			return os.WriteFile(filepath.Join(dir, "f"), nil, 0o600)
		}))
		must.Len(t, 1, inside)
		must.SliceEmpty(t, mounttest.Below(t, dir))
		must.FileNotExists(t, filepath.Join(dir, "f"))
	}
	after, err := os.Readlink("/proc/self/ns/mnt")
	must.NoError(t, err)
	must.Eq(t, before, after)
	must.ErrorContains(t, RunWithMounts(func() error { return errors.New("what f says") }), "what f says")
}
