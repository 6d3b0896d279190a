package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim/region"
)

// shadowed are the driver's libraries that have a shadow, and where the shadow looks for the driver's own, beside itself.
var shadowed = []struct{ soname, behind string }{
	{"libcuda.so.1", ".tranche/driver-libcuda.so"},
	{"libnvidia-ml.so.1", ".tranche/driver-libnvidia-ml.so"},
}

// claim is a limit, and a directory with what leads a process under it, laid out as `tranche run` does:
//
//	regions/<id>/                   the region
//	lib/libcuda.so.1                link to the shadow library
//	lib/.tranche/driver-libcuda.so  link to the driver's
type claim struct {
	dir, id    string
	limitBytes uint64
	env        []string // of a process under the limit
}

// newClaim makes a claim on the GPU. It lives until the end of the run, and costs a few hundred KiB.
func (c *checker) newClaim(limitBytes uint64) (*claim, error) {
	c.claims++
	l := &claim{id: fmt.Sprintf("%08x", c.claims), limitBytes: limitBytes}
	l.dir = filepath.Join(c.work, l.id)
	err := region.Create(l.region(), region.Header{
		ClaimID: l.id, GPUUUID: c.machine.uuid, LimitBytes: limitBytes, ContextBytes: c.machine.contextBytes,
	})
	if err != nil {
		return nil, err
	}
	files := []string{c.machine.cudaFile, c.machine.nvmlFile}
	for i, s := range shadowed {
		if err := l.link(s.soname, s.behind, filepath.Join(c.bundle, "lib", s.soname), files[i]); err != nil {
			return nil, err
		}
	}
	l.env = c.shadowEnv(l)
	return l, nil
}

func (l *claim) region() string { return filepath.Join(l.dir, "regions", l.id) }

func (l *claim) link(soname, behind, shadow, driver string) error {
	lib := filepath.Join(l.dir, "lib")
	if err := os.MkdirAll(filepath.Join(lib, filepath.Dir(behind)), 0o700); err != nil {
		return err
	}
	links := map[string]string{
		behind: driver, soname: shadow, strings.TrimSuffix(soname, ".1"): shadow, filepath.Base(driver): shadow,
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(lib, name)); err != nil {
			return err
		}
	}
	return nil
}

// countedBytes is what the shadow libraries count as taken.
func (l *claim) countedBytes() (uint64, error) {
	usage, err := region.Read(l.region())
	return usage.UsedBytes, err
}

// bareEnv is the environment of a process that uses the driver as it is.
func (c *checker) bareEnv() []string {
	env := slices.Clone(os.Environ())
	if c.driverDir != "" {
		env = setEnv(env, "LD_LIBRARY_PATH", prepend(os.Getenv("LD_LIBRARY_PATH"), c.driverDir))
	}
	if visible := c.machine.visible(c.gpu); visible != "" {
		env = setEnv(env, "CUDA_VISIBLE_DEVICES", visible)
	}
	return setEnv(env, "PYTHONDONTWRITEBYTECODE", "1")
}

func (c *checker) shadowEnv(l *claim) []string {
	env := c.bareEnv()
	lib := filepath.Join(l.dir, "lib")
	var preload []string
	for _, s := range shadowed {
		preload = append(preload, filepath.Join(lib, s.soname))
	}
	env = setEnv(env, "LD_PRELOAD", prepend(getEnv(env, "LD_PRELOAD"), preload...))
	env = setEnv(env, "LD_LIBRARY_PATH", prepend(getEnv(env, "LD_LIBRARY_PATH"), lib))
	return setEnv(env, "TRANCHE_REGIONS", filepath.Join(l.dir, "regions"))
}

func prepend(old string, values ...string) string {
	if old != "" {
		values = append(values, old)
	}
	return strings.Join(values, ":")
}

func getEnv(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// setEnv returns the environment with one variable set. Not in place: callers share what they were given.
func setEnv(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	return append(env, name+"="+value)
}
