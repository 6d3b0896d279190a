package gpuinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

// format is part of the name of the cache directory. Increase it when the files' format changes.
const format = "3"

// driverVersionFile changes with the kernel module. It is outside of any driver root, since there is one kernel.
const driverVersionFile = "/proc/driver/nvidia/version"

// dir returns the directory of the files for the current driver.
func (p Place) dir() (string, error) {
	name, err := p.fingerprint()
	if err != nil {
		return "", err
	}
	return filepath.Join(p.RunDir, "node", name), nil
}

// fingerprint returns a hash of all that the files depend on. It changes when the driver is replaced, its modules are loaded
// again with other device numbers, or GPUs or shared MIG instances are added or removed. It only reads files.
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
	p.describeInstances(sum)
	for _, pattern := range []string{"dev/nvidia*", "dev/nvidia-caps/*"} {
		if err := describeAll(sum, filepath.Join(p.DevRoot(), pattern)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// DevRoot returns the directory with the driver's dev: the driver root if it has device nodes (a driver in a container),
// otherwise the host's root.
func (p Place) DevRoot() string {
	if _, err := os.Stat(filepath.Join(p.DriverRoot, "dev/nvidiactl")); err == nil {
		return p.DriverRoot
	}
	return "/"
}

// describeInstances writes which MIG instances the device plugin shares like GPUs. They come and go while the driver stays.
func (p Place) describeInstances(w io.Writer) {
	shared, err := layout.Read(p.RunDir)
	if err != nil {
		return // whoever needs it reports that
	}
	for _, uuid := range slices.Sorted(maps.Keys(shared)) {
		if strings.HasPrefix(uuid, "MIG-") {
			fmt.Fprintln(w, uuid)
		}
	}
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

// describe writes what distinguishes a file from one that replaced it.
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
