package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

var shadowChecks = makeShadowChecks()

func makeShadowChecks() []check {
	var checks []check
	for _, file := range shadow.Files() {
		checks = append(checks, check{"shadow libraries", file, shadowLibrary(file)})
	}
	return checks
}

// shadowLibrary looks whether a shadow library is one, and loads it, with the driver behind it, into a process that does nothing.
func shadowLibrary(name string) func(context.Context, *Node) finding {
	return func(ctx context.Context, n *Node) finding {
		file, soname := filepath.Join(n.Config.ShadowDir, name), filepath.Base(name)
		if err := shadow.Check(file, soname); err != nil {
			return fault(file, err.Error(), installFiles)
		}
		driver, err := driverroot.FindLibrary(n.Config.DriverRoot, soname)
		if err != nil {
			return warning(file, "it is a shadow library, but there is no driver to load it with", installDriver)
		}
		dir, err := sideBySide(file, driver, soname)
		if err != nil {
			return warning(file, fmt.Sprintf("it is a shadow library; whether it loads was not tried: %v", err),
				"make the directory for temporary files writable")
		}
		defer os.RemoveAll(dir)
		if err := load(ctx, filepath.Join(dir, soname)); err != nil {
			return fault(file, err.Error(), "it was built for another machine or driver: "+installFiles)
		}
		return ok(file, "loads before %s", driver)
	}
}

// sideBySide puts links to the two libraries into a directory of their own, as they lie in a container.
func sideBySide(library, driver, soname string) (string, error) {
	dir, err := os.MkdirTemp("", "tranche-doctor")
	if err != nil {
		return "", err
	}
	behind := filepath.Join(dir, shadow.Behind(soname))
	err = os.MkdirAll(filepath.Dir(behind), 0o700)
	if err == nil {
		err = os.Symlink(driver, behind)
	}
	if err == nil {
		err = os.Symlink(library, filepath.Join(dir, soname))
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// load has the loader resolve all that a library needs.
func load(ctx context.Context, library string) error {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/true")
	// The loader only complains about a library that it cannot preload, and continues.
	cmd.WaitDelay = pipePatience
	cmd.Env = []string{"LD_PRELOAD=" + library, "LD_BIND_NOW=1"}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		return fmt.Errorf("it cannot be loaded: %s: %w", firstLine(out), err)
	case len(out) > 0:
		return fmt.Errorf("it cannot be loaded: %s", firstLine(out))
	}
	return nil
}
