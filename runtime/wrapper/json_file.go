package wrapper

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/tranche-gpu/tranche/runtime/bundle"
)

// jsonFile is a file that an engine has written for the OCI runtime.
type jsonFile struct{ bundle.File }

// change applies a change to the value in the file, and keeps members that the value's type does not have.
func change[T any](f *jsonFile, value T, modify func(T) error) error {
	document, err := decode(f.Content)
	if err != nil {
		return fmt.Errorf("edit %s %s: %w", f.What, f.Path, err)
	}
	before, err := generic(value)
	if err != nil {
		return fmt.Errorf("edit %s %s: %w", f.What, f.Path, err)
	}
	if err := modify(value); err != nil {
		return err
	}
	after, err := generic(value)
	if err != nil {
		return fmt.Errorf("edit %s %s: %w", f.What, f.Path, err)
	}
	f.Content, err = json.Marshal(mergeUnknownFields(document, before, after))
	return err
}

// generic converts a value to decoded JSON: maps and arrays.
func generic(value any) (any, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return decode(content)
}

// write replaces the file atomically by one with the same mode and owner.
func (f *jsonFile) write() error {
	name := filepath.Base(f.Path)
	// The directory need not be root's own: as an os.Root it stays the same one, and no link leads out of it.
	dir, err := os.OpenRoot(filepath.Dir(f.Path))
	if err != nil {
		return fmt.Errorf("write %s: %w", f.What, err)
	}
	defer dir.Close()
	temporary := fmt.Sprintf(".%s.tranche-%d", name, os.Getpid())
	if err = f.writeTemporary(dir, temporary); err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		_ = dir.Remove(temporary)
		return fmt.Errorf("write %s %s: %w", f.What, f.Path, err)
	}
	return nil
}

func (f *jsonFile) writeTemporary(dir *os.Root, name string) error {
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if owner, ok := f.Info.Sys().(*syscall.Stat_t); ok {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	if err := file.Chmod(f.Info.Mode().Perm()); err != nil {
		return err
	}
	if _, err := file.Write(f.Content); err != nil {
		return err
	}
	return file.Close()
}
