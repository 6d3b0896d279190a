package cli

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"tranche.dev/tranche/runtime"
	"tranche.dev/tranche/runtime/driverroot"
)

// driverDir is where, beside a shadow library, the driver's own library lies.
const driverDir = ".tranche"

var sonames = []string{driverroot.CUDALibrary, driverroot.NVMLLibrary}

// findShadows gives the directory of the shadow libraries: the one that was named, or the one beside this program as it
// was built, or the one of an installation.
func findShadows(named string) (string, error) {
	if named != "" {
		return absolute("--shadow-dir", named, checkShadows(named))
	}
	candidates := []string{runtime.DefaultShadowDir}
	if self, err := os.Executable(); err == nil {
		candidates = slices.Insert(candidates, 0, filepath.Join(filepath.Dir(self), "../lib"))
	}
	var failures []error
	for _, dir := range candidates {
		err := checkShadows(dir)
		if err == nil {
			return dir, nil
		}
		failures = append(failures, err)
	}
	return "", fmt.Errorf("there are no shadow libraries; say with --shadow-dir where they are: %w",
		errors.Join(failures...))
}

func absolute(flag, dir string, err error) (string, error) {
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return dir, nil
}

func checkShadows(dir string) error {
	for _, soname := range sonames {
		if err := checkShadow(filepath.Join(dir, soname), soname); err != nil {
			return err
		}
	}
	return nil
}

// checkShadow makes sure that a library is a shadow. It has the driver's name, so what lies in a directory of that name
// may as well be the driver, under which there would be no limit at all.
func checkShadow(path, soname string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("no shadow library %s: %w", path, err)
	}
	defer f.Close()
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("no shadow library %s: %w", path, err)
	}
	if behind := "$ORIGIN/" + driverDir + "/" + soname; len(needed) == 0 || needed[0] != behind {
		return fmt.Errorf("%s is no shadow library of Tranche: it does not begin with the dependency %s", path, behind)
	}
	return nil
}
