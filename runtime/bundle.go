package runtime

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// MaxSpecBytes bounds the size of a container's spec. The largest that are seen in practice are some hundred KiB.
const MaxSpecBytes = 16 << 20

// specFile is a container's OCI spec, as a file in its bundle.
type specFile struct {
	path    string
	info    fs.FileInfo
	content []byte
	spec    *specs.Spec
}

// readSpecFile reads the spec at path.
func readSpecFile(path string) (*specFile, error) {
	// The caller may be anybody who can start a container: don't wait for a writer if they left a FIFO here.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read the container's spec: %s is no regular file (%s)", path, info.Mode().Type())
	}
	content, err := io.ReadAll(io.LimitReader(file, MaxSpecBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	if len(content) > MaxSpecBytes {
		return nil, fmt.Errorf("read the container's spec: %s is larger than %d MiB", path, MaxSpecBytes>>20)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(content, spec); err != nil {
		return nil, fmt.Errorf("read the container's spec: %s is no OCI spec: %w", path, err)
	}
	return &specFile{path: path, info: info, content: content, spec: spec}, nil
}

// ReadSpec reads the spec at path, as the hooks do, to whom it is only to look at.
func ReadSpec(path string) (*specs.Spec, error) {
	file, err := readSpecFile(path)
	if err != nil {
		return nil, err
	}
	return file.spec, nil
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
	bundle, err := os.OpenRoot(filepath.Dir(f.path))
	if err != nil {
		return fmt.Errorf("write the container's spec: %w", err)
	}
	defer bundle.Close()
	temporary := fmt.Sprintf(".%s.tranche-%d", name, os.Getpid())
	if err = f.writeTemporary(bundle, temporary); err == nil {
		err = bundle.Rename(temporary, name)
	}
	if err != nil {
		_ = bundle.Remove(temporary)
		return fmt.Errorf("write the container's spec %s: %w", f.path, err)
	}
	return nil
}

func (f *specFile) writeTemporary(bundle *os.Root, name string) error {
	file, err := bundle.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
