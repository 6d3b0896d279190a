// Package private is what a command under `tranche run` has for itself while it runs: a directory with its region and the shadow
// libraries, and the environment that makes it use them. It decides nothing about the limit.
package private

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/internal/filelock"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// A command under `tranche run` has a directory of its own, with its region and with the libraries that it is to load:
//
//	regions/<claim ID>/             the region, and of a governed claim its record
//	lib/libcuda.so.1                link to the shadow library; its $ORIGIN is lib
//	lib/.tranche/driver-libcuda.so  link to the driver's
//	lock                            locked by `tranche run`
//
// Such a claim has no slices and is not in the ledger, whose claims outlive their container: this one ends with its
// command.
const (
	libDir   = "lib"
	lockFile = "lock"
)

// Dir is the directory of one command, locked by `tranche run`.
type Dir struct {
	path string
	lock *os.File
}

// Base returns the directory in which this user's commands have theirs, and creates it.
func Base(runDir string, environ []string) (string, error) {
	if os.Geteuid() == 0 {
		dir := filepath.Join(runDir, runs.Dir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
		return realPath(dir)
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("tranche-%d", os.Geteuid()))
	if own, _ := LookupEnv(environ, "XDG_RUNTIME_DIR"); filepath.IsAbs(own) {
		dir = filepath.Join(own, "tranche")
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if err := checkOwn(dir); err != nil {
		return "", err
	}
	return realPath(dir)
}

// realPath returns the path by which the kernel names a file that is mapped.
func realPath(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// checkOwn makes sure that a directory is this user's alone: anybody can make one under /tmp before we do, and would
// then decide which libraries the command loads.
func checkOwn(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s has to be a directory that belongs to user %d, with mode 0700: remove it", dir, os.Geteuid())
	}
	return nil
}

// New makes a directory in base, and removes those of commands that are gone.
func New(base string) (*Dir, error) {
	// Until a new directory is locked it looks like one that is left over.
	b, err := os.Open(base)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if err := filelock.Exclusive(b); err != nil {
		return nil, fmt.Errorf("locking %s: %w", base, err)
	}
	removeLeftovers(base)

	path, err := os.MkdirTemp(base, "")
	if err != nil {
		return nil, err
	}
	p := &Dir{path: path}
	if err := p.takeLock(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return p, nil
}

func (p *Dir) takeLock() (err error) {
	if p.lock, err = os.OpenFile(filepath.Join(p.path, lockFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	return filelock.Exclusive(p.lock)
}

func removeLeftovers(base string) {
	used, err := usedDirs(base)
	if err != nil {
		return
	}
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		if _, inUse := used[dir]; e.IsDir() && !inUse {
			_ = removeDir(dir)
		}
	}
}

// Remove removes the directory, unless something that the command has left running still needs it: a process that
// finds no shadow library to load would run without a limit. The next `tranche run` removes it then.
func (p *Dir) Remove() error {
	if err := p.lock.Close(); err != nil {
		return err
	}
	used, err := usedDirs(filepath.Dir(p.path))
	if err != nil {
		return err
	}
	if _, inUse := used[p.path]; inUse {
		return nil
	}
	return removeDir(p.path)
}

// removeDir removes a private directory, first the regions, in which a governor may be making its socket.
func removeDir(path string) error {
	regions, _ := filepath.Glob(filepath.Join(path, runs.Regions, "*")) // the pattern is a good one
	for _, dir := range regions {
		if err := region.Remove(dir); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

// Fill puts the claim's region and the links to the libraries in place.
func (p *Dir) Fill(c *claim.Claim, shadows, driverRoot string) error {
	err := region.Create(filepath.Join(p.path, runs.Regions, c.ID), region.Header{
		ClaimID:      c.ID,
		GPUUUID:      c.GPU.UUID,
		LimitBytes:   c.LimitBytes,
		ContextBytes: c.GPU.ContextBytes,
		SpillBytes:   c.GPUHostMemoryBytes,
	})
	if err != nil {
		return err
	}
	if c.Governed() || c.ByDriver() {
		if err := runs.WriteRecord(filepath.Join(p.path, runs.Regions, c.ID), c); err != nil {
			return err
		}
	}
	libraries := Libraries(c, shadows)
	for _, soname := range libraries.SONAMEs() {
		driver, err := driverroot.FindLibrary(driverRoot, soname)
		if err != nil {
			return err
		}
		if err := p.link(soname, libraries.Path(soname), driver); err != nil {
			return err
		}
	}
	return nil
}

func (p *Dir) lib() string { return filepath.Join(p.path, libDir) }

// link gives the shadow every name under which programs look for the driver's library.
func (p *Dir) link(soname, library, driver string) error {
	behind := shadow.Behind(soname)
	if err := os.MkdirAll(filepath.Join(p.lib(), filepath.Dir(behind)), 0o700); err != nil {
		return err
	}
	links := map[string]string{
		behind:                           driver,
		soname:                           library,
		strings.TrimSuffix(soname, ".1"): library,
		filepath.Base(driver):            library,
	}
	for name, target := range links {
		target, err := filepath.Abs(target)
		if err == nil {
			err = os.Symlink(target, filepath.Join(p.lib(), name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
