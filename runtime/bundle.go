package runtime

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"tranche.dev/tranche/runtime/bundle"
)

// specFile is a container's OCI spec, as a file in its bundle.
type specFile struct {
	path    string
	info    fs.FileInfo
	content []byte
	// spec is what a glance tells, until the spec is changed.
	spec *specs.Spec
}

// readSpecFile reads as much of the spec at path as tells whether there is something to do.
func readSpecFile(path string) (*specFile, error) {
	content, info, err := bundle.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spec, err := bundle.Glance(path, content)
	return &specFile{path: path, info: info, content: content, spec: spec}, err
}

// environment is the container's environment; of a variable that is set twice, the last counts.
func (f *specFile) environment() map[string]string {
	env := map[string]string{}
	if f.spec.Process == nil {
		return env
	}
	for _, entry := range f.spec.Process.Env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			env[name] = value
		}
	}
	return env
}

// modify applies a change to the spec. What the file says beyond what our version of the spec's types knows is kept.
func (f *specFile) modify(modifier Modifier) error {
	document, err := decode(f.content)
	if err != nil {
		return fmt.Errorf("edit the container's spec %s: %w", f.path, err)
	}
	spec := &specs.Spec{}
	if err := bundle.Parse(f.path, f.content, spec); err != nil {
		return err
	}
	f.spec = spec
	before, err := generic(f.spec)
	if err != nil {
		return fmt.Errorf("edit the container's spec %s: %w", f.path, err)
	}
	if err := modifier.Modify(f.spec); err != nil {
		return err
	}
	after, err := generic(f.spec)
	if err != nil {
		return fmt.Errorf("edit the container's spec %s: %w", f.path, err)
	}
	f.content, err = json.Marshal(graft(document, before, after))
	return err
}

// generic turns a spec into maps and arrays.
func generic(spec *specs.Spec) (any, error) {
	content, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return decode(content)
}

// write replaces the file, at once, by one with the same mode and owner.
func (f *specFile) write() error {
	name := filepath.Base(f.path)
	// The bundle need not be root's own: as an os.Root it stays the same directory, and no link leads out of it.
	dir, err := os.OpenRoot(filepath.Dir(f.path))
	if err != nil {
		return fmt.Errorf("write the container's spec: %w", err)
	}
	defer dir.Close()
	temporary := fmt.Sprintf(".%s.tranche-%d", name, os.Getpid())
	if err = f.writeTemporary(dir, temporary); err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		_ = dir.Remove(temporary)
		return fmt.Errorf("write the container's spec %s: %w", f.path, err)
	}
	return nil
}

func (f *specFile) writeTemporary(dir *os.Root, name string) error {
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
