package request

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestMisspelled(t *testing.T) {
	for name, want := range map[string]string{
		"TRANCHE_GPU_MEMMORY":                   `the environment variable "TRANCHE_GPU_MEMMORY" has no meaning: did you mean TRANCHE_GPU_MEMORY?`,
		"TRANCHE_MEMORY":                        "there are TRANCHE_GPU_MEMORY, TRANCHE_GPU, ",
		"TRANCHE_GPUS":                          "did you mean TRANCHE_GPU?",
		"TRANCHE_gpu_memory":                    "there are ",
		"TRANCHE_GPU_HOSTMEMORY":                "did you mean TRANCHE_GPU_HOST_MEMORY?",
		"TRANCHE_\x1b[2J\xff":                   `"TRANCHE_\x1b[2J?"`,
		"TRANCHE_" + strings.Repeat("A", 1<<20): `AAAA" has no meaning`,
	} {
		warnings := Misspelled([]string{"PATH", name})
		must.Len(t, 1, warnings)
		must.StrContains(t, warnings[0], want)
		must.Less(t, 300, len(warnings[0]))
	}
	must.SliceEmpty(t, Misspelled([]string{"PATH", "tranche", "XTRANCHE_GPU", MemoryEnv, "TRANCHE_CLAIM_00c0ffee", "TRANCHE_CDI_SLICE_8GiB"}))
	must.Len(t, maxMisspelled+1, Misspelled([]string{"TRANCHE_A", "TRANCHE_B", "TRANCHE_C", "TRANCHE_D", "TRANCHE_E"}))
}

// Each variable in the sources is known here, or a container that uses it gets a warning.
func TestMisspelled_KnowsEveryVariable(t *testing.T) {
	literal := regexp.MustCompile(`"(TRANCHE_[A-Z_]+)"`)
	found := 0
	for _, folder := range []string{"claim", "device", "driver", "hooks", "intercept", "internal/cli", "runtime"} {
		must.NoError(t, filepath.WalkDir("../../"+folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".c", ".h"}, filepath.Ext(path)) ||
				strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/tests/") || strings.Contains(path, "test/") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range literal.FindAllStringSubmatch(string(text), -1) {
				found++
				must.SliceEmpty(t, Misspelled([]string{match[1]}), must.Sprint(path))
			}
			return err
		}))
	}
	must.Greater(t, 5, found)
}
