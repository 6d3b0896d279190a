package private

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/runs"
)

// RegionsVariable tells the shadow libraries where the regions are, outside a container, and VisibleVariable which GPU alone the
// program sees, by its UUID.
const (
	RegionsVariable = "TRANCHE_REGIONS"
	VisibleVariable = "TRANCHE_VISIBLE_GPU"
)

// Environment returns the command's environment: ours, and what makes it load the shadow libraries and see its GPU.
//
// Preloading answers every later dlopen of the driver's SONAME. The search path is for what gets past that: programs
// that ask for another of its names, and statically linked ones, for which nothing is preloaded.
//
// The shadow libraries replace the number of the GPU by its UUID: many programs take CUDA_VISIBLE_DEVICES for numbers only.
// gcc's AddressSanitizer ends a program if its own library is not the first, as preloaded ones are before it; that it is
// behind the shadow libraries does no harm, since they define none of its functions.
//
// Without the shadow libraries the driver has to number the GPUs as NVML does, for the program to get the claim's.
func (p *Dir) Environment(environ []string, c *claim.Claim) []string {
	if !c.Shadowed() {
		return setEnv(environ, map[string]string{
			RegionsVariable:        filepath.Join(p.path, runs.Regions),
			"CUDA_DEVICE_ORDER":    "PCI_BUS_ID",
			"CUDA_VISIBLE_DEVICES": strconv.Itoa(c.GPU.Index),
		})
	}
	var preload []string
	for _, soname := range Libraries(c, "").SONAMEs() {
		preload = append(preload, filepath.Join(p.lib(), soname))
	}
	return setEnv(environ, map[string]string{
		"LD_PRELOAD":           prepend(environ, "LD_PRELOAD", preload...),
		"LD_LIBRARY_PATH":      prepend(environ, "LD_LIBRARY_PATH", p.lib()),
		RegionsVariable:        filepath.Join(p.path, runs.Regions),
		VisibleVariable:        c.GPU.UUID,
		"CUDA_VISIBLE_DEVICES": "0",
		"ASAN_OPTIONS":         prepend(environ, "ASAN_OPTIONS", "verify_asan_link_order=0"),
	})
}

func prepend(environ []string, name string, values ...string) string {
	if old, ok := LookupEnv(environ, name); ok && old != "" {
		values = append(values, old)
	}
	return strings.Join(values, ":")
}

// LookupEnv returns a variable of an environment, and whether that has it.
func LookupEnv(environ []string, name string) (string, bool) {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

func setEnv(environ []string, values map[string]string) []string {
	set := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := values[name]
		return replaced
	})
	for name, value := range values {
		set = append(set, name+"="+value)
	}
	return set
}
