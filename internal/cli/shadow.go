package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

var sonames = []string{driverroot.CUDALibrary, driverroot.NVMLLibrary}

// findShadows gives the directory of the shadow libraries: the one that was named, or the one beside this program as it
// was built, or the one that is configured.
func findShadows(named, configured string) (string, error) {
	if named != "" {
		return absolute("--shadow-dir", named, checkShadows(named))
	}
	candidates := []string{configured}
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
	return "", fmt.Errorf("there are no shadow libraries: %w", errors.Join(failures...))
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
		if err := shadow.Check(filepath.Join(dir, soname), soname); err != nil {
			return err
		}
	}
	return nil
}
