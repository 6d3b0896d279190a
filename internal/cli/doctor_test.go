package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/cli/doctor"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// The whole command on simulated GPUs: what is there is found to be well, and one thing that is missing is a fault and
// makes the exit status 1.
func TestDoctorOnTheSimulatedGPU(t *testing.T) {
	needs.Root(t, "to install files that belong to root")
	sim, buildDir := simulatedNode(t)
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	write := func(hook string) {
		text := `driver_root = "` + sim.Root + `"` + "\nshadow_dir = \"" + filepath.Join(buildDir, "lib") + "\"\nhook_path = \"" +
			filepath.Join(buildDir, "bin", hook) + "\"\ncli_path = \"" + filepath.Join(buildDir, "bin/tranche") +
			"\"\nruntime = \"/usr/sbin/runc\"\nstate_dir = \"/var/lib/tranche\"\nrun_dir = \"" +
			filepath.Join(dir, "run") + "\"\n"
		must.NoError(t, os.WriteFile(config, []byte(text), 0o644))
	}
	args := []string{"doctor", "--config", config, "--runtime-path", filepath.Join(buildDir, "bin/tranche-runtime")}

	write("tranche-hook")
	out, err := tranche(t, sim, args...).Output()
	must.NoError(t, err, must.Sprintf("%s", out))
	must.StrContains(t, string(out), "driver 570.124.06, CUDA 12.8, 2 GPUs")
	must.StrContains(t, string(out), "libcuda.so.1: loads before "+sim.Root)
	must.StrContains(t, string(out), " 0 faults\n")

	must.NoError(t, os.WriteFile(config, []byte("[idle]\npolicy = \"Stop\"\n[usage]\nkeep_days = 0\n"), 0o644))
	out, err = tranche(t, sim, args...).Output()
	must.Error(t, err)
	must.StrContains(t, string(out), "idle.policy must be")
	must.StrContains(t, string(out), "usage.keep_days must be")

	write("no-hook")
	cmd := tranche(t, sim, append(args, "--json")...)
	out, err = cmd.Output()
	must.Error(t, err)
	must.Eq(t, exitFailure, cmd.ProcessState.ExitCode())
	var results []doctor.Result
	decoder := json.NewDecoder(bytes.NewReader(out))
	decoder.DisallowUnknownFields()
	must.NoError(t, decoder.Decode(&results))
	var faults []string
	for _, r := range results {
		if r.State == doctor.Fault {
			faults = append(faults, r.Group+"/"+r.Check)
			must.StrContains(t, r.Found, "no such file")
			must.StrContains(t, r.Remedy, "hook_path in "+config)
		}
	}
	must.Eq(t, []string{"runtimes/hook"}, faults)
}

func TestDoctor_CountsInWords(t *testing.T) {
	var out strings.Builder
	must.NoError(t, printResults(&out, []doctor.Result{{State: doctor.Fault}, {State: doctor.OK}, {State: doctor.OK}}))
	must.StrHasSuffix(t, "\n3 checks, 0 warnings, 1 fault\n", out.String())
}
