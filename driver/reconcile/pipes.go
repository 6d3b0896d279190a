package reconcile

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// removeStalePipes removes the named pipes of executed commands whose caller was an earlier plugin process.
func (r *Reconciler) removeStalePipes() (removed []string) {
	root := r.ExecDir
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil // No command was ever executed.
	}
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || !info.ModTime().Before(r.Began) || isRead(dir) {
			continue
		}
		if r.DryRun {
			r.Logger.Info("nobody reads these pipes; dry_run keeps them", "directory", dir)
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			r.Logger.Warn("stale pipes could not be removed", "directory", dir, "error", err)
			continue
		}
		r.Logger.Info("removed the pipes of a command whose caller is gone", "directory", dir)
		removed = append(removed, "pipes "+dir)
	}
	return removed
}

// isRead reports whether any process has a pipe in dir open for reading: another plugin on this machine, or the shim of
// a command that still runs.
func isRead(dir string) bool {
	pipes, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return true
	}
	for _, pipe := range pipes {
		fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return true
		}
	}
	return false
}
