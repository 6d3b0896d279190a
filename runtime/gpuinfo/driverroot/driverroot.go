// Package driverroot finds the GPU driver's libraries and programs in a driver root: the
// directory tree that holds the driver's libraries, device nodes and binaries.
// That is "/" on most nodes, and another tree if the driver is in a
// container or an image of its own.
package driverroot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
)

// The SONAMEs of the driver libraries that Tranche uses.
const (
	CUDALibrary = "libcuda.so.1"
	NVMLLibrary = "libnvidia-ml.so.1"
)

// platforms maps GOARCH to the directory that Debian's multiarch uses and to
// the machine number in an ELF header.
var platforms = map[string]struct {
	triplet string
	machine uint16
}{
	"amd64": {"x86_64-linux-gnu", 62},
	"arm64": {"aarch64-linux-gnu", 183},
}

// NotFoundError is returned if a driver root has no usable library or program of that name.
type NotFoundError struct {
	// Root is the driver root that was searched.
	Root string
	// SONAME is the name of the library or program.
	SONAME string
	// Searched lists each file that was looked for, as a path in the driver root,
	// with the error if it exists.
	Searched []string
}

// Error names the driver root, the library and the files that are there and of no use, or the first place that was searched.
func (e *NotFoundError) Error() string {
	var named []string
	for _, file := range e.Searched {
		if strings.Contains(file, ": ") {
			named = append(named, file)
		}
	}
	if len(named) == 0 {
		named = e.Searched[:min(1, len(e.Searched))]
	}
	searched := strings.Join(named, ", ")
	if others := len(e.Searched) - len(named); others > 0 {
		searched += fmt.Sprintf(" and %d other places", others)
	}
	return fmt.Sprintf("no %s in the driver root %s (searched %s): install the NVIDIA driver, or set the driver root to where it is",
		e.SONAME, e.Root, searched)
}

// LibraryDirs lists the directories of a driver root in which the driver's
// libraries may be, most specific first.
func LibraryDirs() []string {
	triplet := platforms[runtime.GOARCH].triplet
	return []string{
		filepath.Join("/usr/lib", triplet),
		filepath.Join("/usr/lib", triplet, "nvidia/current"),
		"/usr/lib64",
		filepath.Join("/lib", triplet),
		"/lib64",
		"/usr/lib",
		"/lib",
		"/usr/local/nvidia/lib64",
		"/usr/local/lib",
		"/run/opengl-driver/lib",
		"/usr/lib/wsl/lib",
	}
}

// FindLibrary returns the path on this host of the file that the SONAME leads
// to in the driver root. Links are followed as if the root were "/", so that
// absolute ones stay inside it. The error is a *NotFoundError if there is no
// such library for this machine.
func FindLibrary(root, soname string) (string, error) {
	return find(root, LibraryDirs(), soname, checkLibrary)
}

// FindFile is FindLibrary for callers that do not load the library: it accepts
// any regular file.
func FindFile(root, soname string) (string, error) {
	return find(root, LibraryDirs(), soname, checkFile)
}

// programDirs are where NVIDIA Container Toolkit looks for the driver's programs.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// FindProgram is FindLibrary for one of the driver's programs.
func FindProgram(root, name string) (string, error) {
	return find(root, programDirs, name, checkProgram)
}

func find(root string, dirs []string, file string, check func(path string) error) (string, error) {
	missing := &NotFoundError{Root: root, SONAME: file}
	for _, dir := range dirs {
		name := filepath.Join(dir, file)
		path, err := securejoin.SecureJoin(root, name)
		if err == nil {
			err = check(path)
		}
		if err == nil {
			return path, nil
		}
		missing.Searched = append(missing.Searched, describe(name, err))
	}
	return "", missing
}

// describe returns the path of a file that was searched, and its error unless
// it does not exist.
func describe(path string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return path
	}
	return fmt.Sprintf("%s: %v", path, err)
}

func checkFile(path string) error {
	switch info, err := os.Stat(path); {
	case err != nil:
		return errors.Unwrap(err)
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	}
	return nil
}

func checkProgram(path string) error {
	if err := checkFile(path); err != nil {
		return err
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return fmt.Errorf("not to be executed: %w", err)
	}
	return nil
}

// checkLibrary returns an error if the loader cannot load the file into a
// process of this machine: distributions have 32-bit libraries under the same
// SONAME, in a directory that is the 64-bit one elsewhere.
func checkLibrary(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return fmt.Errorf("stat: %w", errors.Unwrap(err))
	} else if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}

	var header [20]byte
	if _, err := io.ReadFull(file, header[:]); err != nil || string(header[:4]) != "\x7fELF" {
		return errors.New("not an ELF file")
	}
	const class64, littleEndian = 2, 1
	if header[4] != class64 || header[5] != littleEndian ||
		binary.LittleEndian.Uint16(header[18:]) != platforms[runtime.GOARCH].machine {
		return fmt.Errorf("not a library for %s", runtime.GOARCH)
	}
	return nil
}
