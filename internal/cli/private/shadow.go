package private

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// Sonames are the names of the libraries that are shadowed.
var Sonames = []string{driverroot.CUDALibrary, driverroot.NVMLLibrary}

// Libraries returns the shadow libraries that a claim needs, in a directory.
func Libraries(c *claim.Claim, dir string) shadow.Libraries {
	return shadow.Libraries{Dir: dir, Governed: c.Governed(), ComputeOnly: c.Governed() && c.ByDriver()}
}

// FindShadows returns the directory of the shadow libraries: the one that was named, or the one beside this program as it
// was built, or the one that is configured.
func FindShadows(named, configured string) (string, error) {
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
	for _, soname := range Sonames {
		if err := shadow.Check(filepath.Join(dir, soname), soname); err != nil {
			return err
		}
	}
	return nil
}
