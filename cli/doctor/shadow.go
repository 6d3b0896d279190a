package doctor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"tranche.dev/tranche/runtime"
	"tranche.dev/tranche/runtime/driverroot"
)

var shadowChecks = []check{
	{"shadow libraries", driverroot.CUDALibrary, shadow(driverroot.CUDALibrary)},
	{"shadow libraries", driverroot.NVMLLibrary, shadow(driverroot.NVMLLibrary)},
}

// shadow looks whether a shadow library is one, and loads it, with the driver behind it, into a process that does nothing.
func shadow(soname string) func(context.Context, *Node) finding {
	return func(ctx context.Context, n *Node) finding {
		file := filepath.Join(n.Config.ShadowDir, soname)
		if err := runtime.CheckShadow(file, soname); err != nil {
			return fault(file, err.Error(), installFiles)
		}
		driver, err := driverroot.FindLibrary(n.Config.DriverRoot, soname)
		if err != nil {
			return warning(file, "it is a shadow library, but there is no driver to load it with", installDriver)
		}
		if err := load(ctx, file, driver, soname); err != nil {
			return fault(file, err.Error(), "it was built for another machine or driver: "+installFiles)
		}
		return ok(file, "loads before %s", driver)
	}
}

// load puts the two libraries side by side, as in a container, and has the loader resolve all that they need.
func load(ctx context.Context, shadow, driver, soname string) error {
	dir, err := os.MkdirTemp("", "tranche-doctor")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	behind := filepath.Join(dir, runtime.BehindShadow(soname))
	if err := os.MkdirAll(filepath.Dir(behind), 0o700); err != nil {
		return err
	}
	if err := os.Symlink(driver, behind); err != nil {
		return err
	}
	link := filepath.Join(dir, soname)
	if err := os.Symlink(shadow, link); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/true")
	// The loader only complains about a library that it cannot preload, and goes on.
	cmd.Env = []string{"LD_PRELOAD=" + link, "LD_BIND_NOW=1"}
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		return fmt.Errorf("it cannot be loaded: %s (%w)", firstLine(out), errOr(err))
	}
	return nil
}

func errOr(err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("the loader went on without it")
}
