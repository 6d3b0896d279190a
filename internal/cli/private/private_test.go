package private

import (
	"os"
	"testing"

	"github.com/shoenig/test/must"
)

func TestCheckOwn(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.Chmod(dir, 0o700))
	must.NoError(t, checkOwn(dir))
	must.NoError(t, os.Symlink(dir, dir+"/link"))
	must.ErrorContains(t, checkOwn(dir+"/link"), "has to be a directory that belongs to user")
	must.NoError(t, os.Chmod(dir, 0o755))
	must.ErrorContains(t, checkOwn(dir), "mode 0700")
	must.ErrorIs(t, checkOwn(dir+"/none"), os.ErrNotExist)
	if os.Geteuid() == 0 {
		must.NoError(t, os.Chmod(dir, 0o700))
		must.NoError(t, os.Chown(dir, 65534, 65534))
		must.ErrorContains(t, checkOwn(dir), "belongs to user 0")
	}
}

func TestFindShadowsBesideTheProgram(t *testing.T) {
	_, err := FindShadows("", "/usr/lib/tranche")
	must.ErrorContains(t, err, "there are no shadow libraries")
	must.ErrorContains(t, err, "--shadow-dir")
	must.ErrorContains(t, err, "/lib/libcuda.so.1")
}
