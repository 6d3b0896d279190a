package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	claims "github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// claim is a limit, and a directory with what leads a process under it, laid out as `tranche run` does:
//
//	regions/<id>/                   the region, and of a governed claim its record
//	lib/libcuda.so.1                link to the shadow library
//	lib/.tranche/driver-libcuda.so  link to the driver's
type claim struct {
	dir, id    string
	limitBytes uint64
	env        []string // of a process under the limit
}

// newClaim makes a claim on the GPU. It lives until the end of the run, and costs a few hundred KiB.
func (c *checker) newClaim(limitBytes uint64) (*claim, error) { return c.makeClaim(limitBytes, nil) }

// newGoverned makes a claim that has a part of the GPU's time.
func (c *checker) newGoverned(part *claims.Compute) (*claim, error) {
	return c.makeClaim(c.machine.limitBytes, part)
}

func (c *checker) makeClaim(limitBytes uint64, part *claims.Compute) (*claim, error) {
	c.claims++
	l := &claim{id: fmt.Sprintf("%08x", c.claims), limitBytes: limitBytes}
	l.dir = filepath.Join(c.work, runs.Dir, l.id)
	err := region.Create(l.region(), region.Header{
		ClaimID: l.id, GPUUUID: c.machine.uuid, LimitBytes: limitBytes, ContextBytes: c.machine.contextBytes,
	})
	if err == nil && part != nil {
		err = runs.WriteRecord(l.region(), &claims.Claim{
			ID: l.id, GPU: claims.GPU{UUID: c.machine.uuid}, LimitBytes: limitBytes, Owner: claims.OwnerRun, Compute: part,
		})
	}
	if err != nil {
		return nil, err
	}
	libraries := shadow.Libraries{Dir: filepath.Join(c.bundle, "lib"), Governed: part != nil}
	for soname, driver := range map[string]string{shadow.CUDA: c.machine.cudaFile, shadow.NVML: c.machine.nvmlFile} {
		if err := l.link(soname, libraries.Path(soname), driver); err != nil {
			return nil, err
		}
	}
	l.env = c.shadowEnv(l)
	return l, nil
}

func (l *claim) region() string { return filepath.Join(l.dir, runs.Regions, l.id) }

func (l *claim) link(soname, library, driver string) error {
	behind := shadow.Behind(soname)
	lib := filepath.Join(l.dir, "lib")
	if err := os.MkdirAll(filepath.Join(lib, filepath.Dir(behind)), 0o700); err != nil {
		return err
	}
	links := map[string]string{
		behind: driver, soname: library, strings.TrimSuffix(soname, ".1"): library, filepath.Base(driver): library,
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
	for _, soname := range []string{shadow.CUDA, shadow.NVML} {
		preload = append(preload, filepath.Join(lib, soname))
	}
	env = setEnv(env, "LD_PRELOAD", prepend(getEnv(env, "LD_PRELOAD"), preload...))
	env = setEnv(env, "LD_LIBRARY_PATH", prepend(getEnv(env, "LD_LIBRARY_PATH"), lib))
	return setEnv(env, "TRANCHE_REGIONS", filepath.Join(l.dir, runs.Regions))
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
