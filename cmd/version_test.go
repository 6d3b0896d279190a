package cmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/version"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// All programs and libraries of one build state the same version, by which `tranche doctor` finds an upgrade that was not
// finished.
func TestVersion(t *testing.T) {
	build := os.Getenv("TRANCHE_BUILD")
	if build == "" {
		build = "../build"
	}
	want, err := shadow.Version(filepath.Join(build, "lib", shadow.CUDA))
	must.NoError(t, err, must.Sprint("run `make build` first"))
	found, err := shadow.Version(filepath.Join(build, "lib", shadow.NVML))
	must.NoError(t, err)
	must.Eq(t, want, found)
	for program, flag := range map[string]string{
		"tranche": version.Flag, "tranche-hook": version.Flag, "tranche-runtime": version.RuntimeFlag,
		"nomad-device-tranche": version.Flag, "nomad-driver-tranche": version.Flag,
	} {
		out, err := exec.Command(filepath.Join(build, "bin", program), flag).Output()
		must.NoError(t, err, must.Sprint(program))
		must.StrHasSuffix(t, want, strings.TrimSpace(string(out)), must.Sprint(program))
	}
}
