package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// maxConfigBytes is far more than any configuration takes.
const maxConfigBytes = 4 << 20

// file is a file as it is before the change.
type file struct {
	path     string
	exists   bool
	text     []byte
	mode     fs.FileMode
	uid, gid int
}

// readFile reads a file that may be missing, and refuses what is no plain file: one that is a link would be replaced by
// the rename, and what it leads to is somebody else's to change.
func readFile(path string) (*file, error) {
	f := &file{path: path, mode: 0o644, uid: -1, gid: -1}
	handle, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, nil
	case errors.Is(err, unix.ELOOP):
		target, _ := os.Readlink(path)
		return nil, fmt.Errorf("%s is a link to %s: name the file itself with --config", path, target)
	case err != nil:
		return nil, fmt.Errorf("read the configuration: %w; run this as root", err)
	}
	defer handle.Close()
	return f, f.fill(handle)
}

func (f *file) fill(handle *os.File) error {
	info, err := handle.Stat()
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file (%s), so it is no configuration", f.path, info.Mode().Type())
	}
	f.text, err = io.ReadAll(io.LimitReader(handle, maxConfigBytes+1))
	if err != nil {
		return fmt.Errorf("read the configuration %s: %w", f.path, err)
	}
	if len(f.text) > maxConfigBytes {
		return fmt.Errorf("%s is larger than %d MiB, so it is no configuration", f.path, maxConfigBytes>>20)
	}
	f.exists, f.mode = true, info.Mode().Perm()
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		f.uid, f.gid = int(owner.Uid), int(owner.Gid)
	}
	return nil
}

// Change is one file that is to be written or removed.
type Change struct {
	file    *file
	after   []byte
	removes bool
	// program is set for what is copied rather than edited: it is not kept, and no difference of it is shown.
	program bool
	// link is where the path is to lead, if it is to be a link.
	link string
	// wasLink is where it leads before the change, if it is a link.
	wasLink string
}

// Path is the file's.
func (c Change) Path() string { return c.file.path }

// Describe says in one line what was done to the file; backup is where its old text is kept.
func (c Change) Describe(backup string) string {
	did := "wrote"
	switch {
	case c.removes:
		did = "removed"
	case c.link != "":
		return fmt.Sprintf("linked %s to %s", c.file.path, c.link)
	}
	if backup == "" {
		return fmt.Sprintf("%s %s", did, c.file.path)
	}
	return fmt.Sprintf("%s %s; as it was before: %s", did, c.file.path, backup)
}

// Apply makes the change and returns the name of the file that keeps what was there before. The file is replaced at
// once, with its mode and owner; it is never seen half written.
func (c Change) Apply(now time.Time) (backup string, err error) {
	if !c.program {
		if err := c.unchanged(); err != nil {
			return "", err
		}
		if backup, err = c.keep(now); err != nil {
			return "", err
		}
	}
	if c.removes {
		return "", os.Remove(c.file.path)
	}
	if err := os.MkdirAll(filepath.Dir(c.file.path), 0o755); err != nil {
		return backup, fmt.Errorf("make the directory of %s: %w", c.file.path, err)
	}
	if c.link != "" {
		return "", renameio.Symlink(c.link, c.file.path)
	}
	return backup, c.file.write(c.file.path, c.after)
}

// unchanged makes sure that the plan still fits: whoever else edited the file meanwhile would lose their edit.
func (c Change) unchanged() error {
	now, err := readFile(c.file.path)
	if err != nil {
		return err
	}
	if now.exists != c.file.exists || !bytes.Equal(now.text, c.file.text) {
		return fmt.Errorf("%s was changed by somebody else just now: try again", c.file.path)
	}
	return nil
}

// keep copies the file to one beside it. Its name ends so that no engine takes it for a part of its configuration.
func (c Change) keep(now time.Time) (string, error) {
	if !c.file.exists || c.removes { // one that is removed had nothing in it but ours
		return "", nil
	}
	name := c.file.path + ".before-tranche-" + now.UTC().Format("20060102T150405.000Z")
	return name, c.file.write(name, c.file.text)
}

// Undo puts back what was there.
func (c Change) Undo() error {
	if c.wasLink != "" {
		return renameio.Symlink(c.wasLink, c.file.path)
	}
	if !c.file.exists {
		return os.Remove(c.file.path)
	}
	return c.file.write(c.file.path, c.file.text)
}

func (f *file) write(path string, text []byte) error {
	pending, err := renameio.NewPendingFile(path, renameio.WithStaticPermissions(f.mode))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = pending.Cleanup() }()
	if _, err := pending.Write(text); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if f.uid >= 0 {
		if err := pending.Chown(f.uid, f.gid); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	if err := pending.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
