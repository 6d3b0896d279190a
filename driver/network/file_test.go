package network

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestReplaceFile(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	dir := t.TempDir()
	host := filepath.Join(t.TempDir(), "host")
	must.NoError(t, os.WriteFile(host, []byte("the host's"), 0o600))
	must.NoError(t, os.Symlink(host, filepath.Join(dir, "resolv.conf")))

	for _, text := range []string{"nameserver 192.0.2.1\n", "shorter\n"} {
		path, err := replaceFile(dir, "resolv.conf", text, os.Getuid())
		must.NoError(t, err)
		must.Eq(t, filepath.Join(dir, "resolv.conf"), path)
		data, err := os.ReadFile(path)
		must.NoError(t, err)
		must.Eq(t, text, string(data))
		info, err := os.Lstat(path)
		must.NoError(t, err)
		must.Eq(t, 0o644, info.Mode())
	}
	data, err := os.ReadFile(host)
	must.NoError(t, err)
	must.Eq(t, "the host's", string(data))
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceLen(t, 1, entries)
}

func TestReplaceFile_LeavesNothingWhenItFails(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "resolv.conf", "in the way"), 0o755))
	_, err := replaceFile(dir, "resolv.conf", "nameserver 192.0.2.1\n", os.Getuid())
	must.Error(t, err)
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceLen(t, 1, entries)
	_, err = replaceFile(filepath.Join(dir, "missing"), "resolv.conf", "", os.Getuid())
	must.ErrorIs(t, err, os.ErrNotExist)
}
