// Package networktest has what tests of networks share.
package networktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/thread"
)

// Namespace makes a network namespace as Nomad does for a group, and returns the path that stands for it.
func Namespace(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "netns")
	must.NoError(t, os.WriteFile(file, nil, 0o644))
	must.NoError(t, thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, "")
	}))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(file, unix.MNT_DETACH)) })
	return file
}
