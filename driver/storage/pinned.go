package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/filelock"
)

// pinnedSources are the sources of one start's bind mounts, where no task can change what they lead to.
//
// runc mounts a source by its path, some time after we have checked it. A task of the same allocation that runs already
// could meanwhile replace a directory on the way by a link to /etc of the host, and have that mounted into the next task.
// No check of a path helps against it. So what we have opened and checked is bind-mounted, by its descriptor, to a place
// below run_dir that only root can reach, and the container's spec names that place. What the task does to the path
// from then on changes nothing.
//
// The place is a tmpfs of its own, which goes with everything in it as soon as the container has started: the container's
// own mounts do not depend on it. It is private, so that no other mount namespace gets a copy. containerd has to be in the
// plugin's mount namespace, as it must be for the secrets directories that Nomad mounts.
type pinnedSources struct {
	dir   string
	lock  *os.File
	count int
}

// The parts of a place for pinned sources.
const (
	pinnedLock  = "lock"
	pinnedMount = "mount"
)

// PinnedDir returns the directory below run_dir that has the places for pinned sources.
func PinnedDir(runDir string) string { return filepath.Join(runDir, "mount-sources") }

// newPinnedSources makes the place for the sources of a container. The lock on it tells other plugin
// processes that it is in use, and the kernel drops it with this process.
func newPinnedSources(runDir, containerID string) (*pinnedSources, error) {
	p := &pinnedSources{dir: filepath.Join(PinnedDir(runDir), containerID)}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockPinned(p.dir)
	if err != nil {
		return nil, fmt.Errorf("lock %s, which another start of the task may hold: %w", p.dir, err)
	}
	p.lock = lock
	at := filepath.Join(p.dir, pinnedMount)
	err = errors.Join(unmountPinned(at), os.MkdirAll(at, 0o700))
	if err == nil {
		err = unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=1m")
	}
	if err == nil {
		err = unix.Mount("", at, "", unix.MS_PRIVATE, "")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount a tmpfs at %s: %w", at, err), p.release())
	}
	return p, nil
}

func lockPinned(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, pinnedLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.TryExclusive(lock); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// add pins a file or directory and returns the path to mount.
func (p *pinnedSources) add(source *os.File) (string, error) {
	info, err := source.Stat()
	if err != nil {
		return "", err
	}
	at := filepath.Join(p.dir, pinnedMount, fmt.Sprint(p.count))
	p.count++
	if info.IsDir() {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, nil, 0o600)
	}
	if err != nil {
		return "", err
	}
	err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), at, "", unix.MS_BIND|unix.MS_REC, "")
	if err != nil {
		return "", fmt.Errorf("bind the source of a mount to %s: %w", at, err)
	}
	return at, nil
}

// release removes the place and everything in it.
func (p *pinnedSources) release() error {
	err := removePinned(p.dir)
	p.lock.Close()
	return err
}

// removePinned removes a place whose lock the caller holds. Nothing here removes more than a mount point or an empty
// directory: what is mounted is a task's data.
func removePinned(dir string) error {
	at := filepath.Join(dir, pinnedMount)
	if err := unmountPinned(at); err != nil {
		return err
	}
	var errs []error
	for _, path := range []string{at, filepath.Join(dir, pinnedLock), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// unmountPinned unmounts what is at a path, if anything is. All of it becomes private first: a pinned directory that has
// mounts below it and propagates would otherwise take those of the directory itself along.
func unmountPinned(at string) error {
	for {
		err := unix.Mount("", at, "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil // no mount point
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
}

// sweepPinned removes the places of starts whose plugin process was killed.
func sweepPinned(runDir string) error {
	entries, err := os.ReadDir(PinnedDir(runDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, entry := range entries {
		dir := filepath.Join(PinnedDir(runDir), entry.Name())
		lock, err := lockPinned(dir)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = removePinned(dir)
			lock.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
