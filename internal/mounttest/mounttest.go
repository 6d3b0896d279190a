// Package mounttest has what tests of mounts share.
package mounttest

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// Write writes files below a directory, with the directories above them.
func Write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
}

// Tmpfs mounts a tmpfs until the test ends.
func Tmpfs(t *testing.T, at string) {
	t.Helper()
	must.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"))
	must.NoError(t, unix.Mount("", at, "", unix.MS_PRIVATE, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
}

// Shared mounts a tmpfs that propagates, as the mounts of a usual host do.
func Shared(t *testing.T, at string) {
	t.Helper()
	Tmpfs(t, at)
	must.NoError(t, unix.Mount("", at, "", unix.MS_SHARED, ""))
}

// Below returns the mount points at a path and below it.
func Below(t *testing.T, dir string) []string {
	t.Helper()
	file, err := os.Open("/proc/self/mountinfo")
	must.NoError(t, err)
	defer file.Close()
	var found []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		at := strings.Fields(lines.Text())[4]
		if at == dir || strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found
}
