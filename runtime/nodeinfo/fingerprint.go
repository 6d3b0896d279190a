package nodeinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/driverroot"
)

// format is part of the name under which files are kept. Raise it when they change.
const format = "2"

// driverVersionFile changes with the kernel module. It lies outside any driver root: there is one kernel.
const driverVersionFile = "/proc/driver/nvidia/version"

// dir is the directory of the files that hold for the driver of now.
func (p Place) dir() (string, error) {
	name, err := p.fingerprint()
	if err != nil {
		return "", err
	}
	return filepath.Join(p.RunDir, "node", name), nil
}

// fingerprint sums up all that the files depend on, so that they are made anew when the driver was replaced, its modules
// were loaded again under other device numbers, or GPUs came or went. It looks at files only and asks nobody.
func (p Place) fingerprint() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, format, p.DriverRoot, p.DevRoot(), p.CLIPath)
	for _, soname := range []string{driverroot.NVMLLibrary, driverroot.CUDALibrary} {
		file, err := driverroot.FindFile(p.DriverRoot, soname)
		if err != nil {
			return "", err
		}
		if err := describe(sum, file); err != nil {
			return "", err
		}
	}
	if version, err := os.ReadFile(driverVersionFile); err == nil {
		fmt.Fprintf(sum, "%s\n", version)
	}
	for _, pattern := range []string{"dev/nvidia*", "dev/nvidia-caps/*"} {
		if err := describeAll(sum, filepath.Join(p.DevRoot(), pattern)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// DevRoot is the directory that holds the driver's dev: the driver root where the driver brings device nodes of its own
// (a driver in a container), else the host's.
func (p Place) DevRoot() string {
	if _, err := os.Stat(filepath.Join(p.DriverRoot, "dev/nvidiactl")); err == nil {
		return p.DriverRoot
	}
	return "/"
}

func describeAll(w io.Writer, pattern string) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := describe(w, file); err != nil {
			return err
		}
	}
	return nil
}

// describe writes what tells a file from one that replaced it.
func describe(w io.Writer, file string) error {
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // gone since it was listed
		}
		return fmt.Errorf("look at %s: %w", file, err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFREG {
		fmt.Fprintln(w, file, stat.Dev, stat.Ino, stat.Size, stat.Mtim.Nano())
		return nil
	}
	fmt.Fprintln(w, file, stat.Mode, stat.Rdev)
	return nil
}
