package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
)

// dirs are the directories of a GPU's daemon.
type dirs struct{ runDir, root string }

// pipe is the daemon's own directory. Clients must have no access to it: with write access they could replace the daemon's
// socket, and through control_privileged they could send the daemon any command.
func (d dirs) pipe() string { return filepath.Join(d.root, "pipe") }

// client has links to those files in it that clients need.
func (d dirs) client() string { return filepath.Join(d.root, mpsdir.Client) }

// shm is the /dev/shm of the daemon and its clients.
func (d dirs) shm() string { return filepath.Join(d.root, mpsdir.Shm) }

// namespace is the directory that the containers of a claim have, in MPS v3.
func (d dirs) namespace(name string) string { return filepath.Join(d.root, mpsdir.Namespaces, name) }

// namespaceSocket is where the daemon listens for the clients in a namespace.
func (d dirs) namespaceSocket(name string) string {
	return filepath.Join(d.pipe(), serverName, name, mpsdir.Control)
}

func (d dirs) log() string         { return filepath.Join(d.root, "log") }
func (d dirs) library() string     { return filepath.Join(d.root, "lib") }
func (d dirs) control() string     { return filepath.Join(d.pipe(), mpsdir.Control) }
func (d dirs) identity() string    { return filepath.Join(d.root, "daemon.json") }
func (d dirs) computeMode() string { return filepath.Join(d.root, "compute-mode.json") }

// longestSocket is the maximum length of the path of a Unix socket in bytes (unix(7)).
const longestSocket = 107

// CheckRunDir returns an error if the paths of a daemon's sockets in a run directory would be too long.
func CheckRunDir(runDir, uuid string) error {
	d := dirs{runDir: runDir, root: mpsdir.Of(runDir, uuid)}
	if socket := filepath.Join(d.pipe(), "control_privileged"); len(socket) > longestSocket {
		return fmt.Errorf("the path of the MPS control daemon's socket, %s, is longer than the %d bytes that the kernel "+
			"allows: choose a shorter run_dir", socket, longestSocket)
	}
	return nil
}

// make creates missing directories. A server may run as the user of its clients, and needs access to its directories.
func (d dirs) make() error {
	if err := CheckRunDir(d.runDir, filepath.Base(d.root)); err != nil {
		return err
	}
	for _, dir := range []string{d.runDir, filepath.Dir(d.root), d.root} {
		if err := makePassable(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{d.pipe(), d.client(), d.shm(), d.log(), d.library()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the directories of an MPS control daemon: %w", err)
		}
	}
	return d.mountShm()
}

// makePassable creates a directory with search permission for all users.
func makePassable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directories of an MPS control daemon: %w", err)
	}
	info, err := os.Stat(dir)
	if err == nil && info.Mode()&0o111 != 0o111 {
		err = os.Chmod(dir, info.Mode().Perm()|0o111)
	}
	if err != nil {
		return fmt.Errorf("give the servers of an MPS control daemon access to %s: %w", dir, err)
	}
	return nil
}

// mountShm mounts a file system of its own at shm, so that files of clients take no space from the run directory. It stays
// as long as there is a daemon, because running containers have it mounted.
func (d dirs) mountShm() error {
	mounted, err := isMount(d.shm())
	if err != nil {
		return fmt.Errorf("check the mount at %s: %w", d.shm(), err)
	}
	if mounted {
		return nil
	}
	if err := unix.Mount("tranche-mps", d.shm(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777"); err != nil {
		return fmt.Errorf("mount a tmpfs at %s: %w", d.shm(), err)
	}
	return nil
}

func isMount(dir string) (bool, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &stat); err != nil {
		return false, err
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// shared are the files of the daemon's directory that clients need: the socket at which it listens, the file that it keeps
// locked, by which programs may check that it is alive, and the pipe to its log, to which clients may write, too.
var shared = []string{mpsdir.Control, mpsdir.Lock, "log"}

// publish links the daemon's files into the clients' directory. A hard link to a socket reaches the daemon that listens at
// it, and clients cannot replace it, because containers have the directory read-only.
func (d dirs) publish() error {
	for _, name := range shared {
		err := publishFile(filepath.Join(d.pipe(), name), d.client())
		if err != nil && (!errors.Is(err, fs.ErrNotExist) || name == mpsdir.Control) {
			return err
		}
	}
	return nil
}

// publishFile links a file into a directory, in the place of an older one.
func publishFile(from, dir string) error {
	fresh := filepath.Join(dir, ".new")
	_ = os.Remove(fresh)
	err := os.Link(from, fresh)
	if err == nil {
		err = os.Rename(fresh, filepath.Join(dir, filepath.Base(from)))
	}
	if err != nil {
		return fmt.Errorf("publish the socket of an MPS control daemon: %w", err)
	}
	_ = os.Remove(fresh) // renaming a hard link to another one of the same file does nothing
	return nil
}

// withdraw removes the files of a daemon that has ended from the clients' directories.
func (d dirs) withdraw() {
	for _, name := range shared {
		_ = os.Remove(filepath.Join(d.client(), name))
	}
	for _, name := range d.published() {
		_ = os.Remove(filepath.Join(d.namespace(name), mpsdir.Control))
	}
}

// remove removes all directories.
func (d dirs) remove() error {
	mounted, err := isMount(d.shm())
	if err == nil && mounted {
		err = unix.Unmount(d.shm(), unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", d.shm(), err)
	}
	return os.RemoveAll(d.root)
}

// identity identifies a daemon, which records it itself when it is started.
type identity struct {
	Process proc.ID `json:"process"`
	// Namespace is its mount namespace, in which only the daemon and its servers are.
	Namespace string `json:"namespace"`
	kind
}

// kind is in which of its ways a daemon was started.
type kind struct {
	OneUser bool `json:"one_user"`
	// V3 is whether it is a daemon of MPS v3, with namespaces.
	V3 bool `json:"v3,omitempty"`
}

// readIdentity returns the recorded identity; the zero value if no daemon was started.
func (d dirs) readIdentity() (identity, error) {
	var id identity
	err := readJSON(d.identity(), &id)
	return id, err
}

// readJSON decodes a file into value, which stays as it is if there is no such file.
func readJSON(path string, value any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		err = renameio.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
