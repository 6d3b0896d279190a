package runtime

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MaxSpecBytes bounds the size of a container's spec. The largest that are seen in practice are some hundred KiB.
const MaxSpecBytes = 16 << 20

// jsonFile is a file that an engine has written for the OCI runtime, and that we may change on its way there.
type jsonFile struct {
	// what the file is to the engine, and which kind of JSON it holds, for errors.
	what, kind string
	path       string
	info       fs.FileInfo
	content    []byte
}

// read reads the file, and decodes it into value.
func (f *jsonFile) read(value any) error {
	file, err := f.open()
	if err != nil {
		return fmt.Errorf("read %s: %w", f.what, err)
	}
	defer file.Close()
	f.content, err = io.ReadAll(io.LimitReader(file, MaxSpecBytes+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", f.what, err)
	}
	if len(f.content) > MaxSpecBytes {
		return fmt.Errorf("read %s: %s is larger than %d MiB", f.what, f.path, MaxSpecBytes>>20)
	}
	if err := json.Unmarshal(f.content, value); err != nil {
		return fmt.Errorf("read %s: %s is no %s: %w", f.what, f.path, f.kind, err)
	}
	return nil
}

// open opens the file if it is a regular one. A pipe is left alone: whoever writes to it would take us for the next
// runtime. The caller may be anybody who can start a container, and put one there after we have looked: don't wait for
// its writer then.
func (f *jsonFile) open() (*os.File, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file (%s)", f.path, info.Mode().Type())
	}
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if f.info, err = file.Stat(); err == nil && !f.info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file (%s)", f.path, f.info.Mode().Type())
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// edit applies a change to the value that the file holds. What the file says beyond what our version of the value's type
// knows is kept.
func edit[T any](f *jsonFile, value T, change func(T) error) error {
	document, err := decode(f.content)
	if err != nil {
		return fmt.Errorf("edit %s %s: %w", f.what, f.path, err)
	}
	before, err := generic(value)
	if err != nil {
		return fmt.Errorf("edit %s %s: %w", f.what, f.path, err)
	}
	if err := change(value); err != nil {
		return err
	}
	after, err := generic(value)
	if err != nil {
		return fmt.Errorf("edit %s %s: %w", f.what, f.path, err)
	}
	f.content, err = json.Marshal(graft(document, before, after))
	return err
}

// generic turns a value into maps and arrays.
func generic(value any) (any, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return decode(content)
}

// write replaces the file, at once, by one with the same mode and owner.
func (f *jsonFile) write() error {
	name := filepath.Base(f.path)
	// The directory need not be root's own: as an os.Root it stays the same one, and no link leads out of it.
	dir, err := os.OpenRoot(filepath.Dir(f.path))
	if err != nil {
		return fmt.Errorf("write %s: %w", f.what, err)
	}
	defer dir.Close()
	temporary := fmt.Sprintf(".%s.tranche-%d", name, os.Getpid())
	if err = f.writeTemporary(dir, temporary); err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		_ = dir.Remove(temporary)
		return fmt.Errorf("write %s %s: %w", f.what, f.path, err)
	}
	return nil
}

func (f *jsonFile) writeTemporary(dir *os.Root, name string) error {
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if owner, ok := f.info.Sys().(*syscall.Stat_t); ok {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := file.Chmod(f.info.Mode().Perm()); err != nil {
		return err
	}
	if _, err := file.Write(f.content); err != nil {
		return err
	}
	return file.Close()
}
