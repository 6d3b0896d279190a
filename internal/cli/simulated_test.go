package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/internal/cli/report"
	"github.com/tranche-gpu/tranche/internal/size"
)

// simulatedNode lays out the simulated GPUs, and gives the environment that leads to them and where things were built.
func simulatedNode(t *testing.T) (sim *node.Sim, buildDir string) {
	t.Helper()
	return simulatedNodeOf(t, "h200x2.conf")
}

func simulatedNodeOf(t *testing.T, topology string) (sim *node.Sim, buildDir string) {
	t.Helper()
	buildDir = os.Getenv("TRANCHE_BUILD")
	if buildDir == "" {
		buildDir = "../../build"
	}
	for _, file := range []string{"sim/bin/simgpu", "sim/lib/libcuda.so.1", "lib/libcuda.so.1", "e2e/gpu-probe"} {
		if _, err := os.Stat(filepath.Join(buildDir, file)); err != nil {
			if os.Getenv("TRANCHE_BUILD") != "" {
				t.Fatalf("the simulated GPU or the shadow libraries are not built: %v", err)
			}
			t.Skipf("the simulated GPU or the shadow libraries are not built (make build sim): %v", err)
		}
	}
	sim = node.NewSim(buildDir, filepath.Join(t.TempDir(), "root"))
	must.NoError(t, sim.LayOut(t.Context(), filepath.Join("../../e2e/simgpu/topologies", topology)))
	return sim, buildDir
}

// tranche starts the command line, with NVML and the measurement of a context as they are.
func tranche(t *testing.T, sim *node.Sim, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), append(sim.Env(), "TRANCHE_TEST_CLI=real")...)
	cmd.Stderr = os.Stderr
	return cmd
}

// The whole of it, judged by the simulator's record: a program that takes all that it can gets its limit and no more,
// on the GPU that was asked for, and tells nobody else's GPU from its own.
func TestRunOnTheSimulatedGPU(t *testing.T) {
	sim, buildDir := simulatedNode(t)
	state, run := t.TempDir(), t.TempDir()
	before, err := sim.Record(t.Context())
	must.NoError(t, err)
	uuid := before.GPUs[1].UUID

	const limit = 2 << 30
	cmd := tranche(t, sim, "run", "--memory", "2GiB", "--gpu", "1", "--driver-root", sim.Root,
		"--shadow-dir", filepath.Join(buildDir, "lib"), "--state-dir", state, "--run-dir", run,
		"--", filepath.Join(buildDir, "e2e/gpu-probe"), "fill")
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	gpu := event(t, lines, "gpu")
	must.Eq(t, float64(limit), gpu["cuDeviceTotalMem"].(float64))
	full := event(t, lines, "full")
	must.Eq(t, "CUDA_ERROR_OUT_OF_MEMORY", full["name"].(string))

	record, err := sim.Record(t.Context())
	must.NoError(t, err)
	var held uint64
	for _, g := range record.GPUs {
		if g.UUID == uuid {
			held = g.UsedBytes
		} else {
			must.Zero(t, g.UsedBytes)
		}
	}
	must.Between(t, limit-size.GPUUnit+1, held, limit)
	checkStatus(t, sim, state, run, uuid, held)

	must.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	event(t, lines, "stopped")
	must.NoError(t, cmd.Wait())
	record, err = sim.Record(t.Context())
	must.NoError(t, err)
	must.Zero(t, record.GPUs[1].UsedBytes)
}

// A command sees the one GPU that its caller has chosen, by CUDA and by NVML, and by the number that CUDA_VISIBLE_DEVICES has then.
func TestRunSeesOneGPU(t *testing.T) {
	const (
		first    = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000"
		second   = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001"
		instance = "MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a02" // of the first
	)
	for name, tc := range map[string]struct {
		topology      string
		environ, args []string
		// gpu is the one whose memory is taken, by the record, and listed what nvidia-smi lists.
		gpu, listed string
	}{
		"the flag":        {"h200x2.conf", nil, []string{"--gpu", "1"}, second, second},
		"CUDA's variable": {"h200x2.conf", []string{"CUDA_VISIBLE_DEVICES=1"}, nil, second, second},
		"a MIG instance":  {"h200-mig.conf", nil, []string{"--gpu", instance}, instance, first},
	} {
		t.Run(name, func(t *testing.T) {
			sim, buildDir := simulatedNodeOf(t, tc.topology)
			run := func(program ...string) *exec.Cmd {
				args := append([]string{"run", "--memory", "1GiB", "--driver-root", sim.Root, "--shadow-dir", filepath.Join(buildDir, "lib"),
					"--state-dir", t.TempDir(), "--run-dir", t.TempDir()}, tc.args...)
				cmd := tranche(t, sim, append(append(args, "--"), program...)...)
				cmd.Env = append(cmd.Env, tc.environ...)
				return cmd
			}
			listed, err := run(filepath.Join(buildDir, "sim/bin/nvidia-smi"), "-L").Output()
			must.NoError(t, err)
			must.StrHasPrefix(t, "GPU 0: NVIDIA H200 (UUID: "+tc.listed+")\n", string(listed))
			must.Eq(t, 1, strings.Count(string(listed), "GPU "), must.Sprint(string(listed)))
			variable, err := run("sh", "-c", "echo $CUDA_VISIBLE_DEVICES").Output()
			must.NoError(t, err)
			must.Eq(t, "0\n", string(variable))

			cmd := run(filepath.Join(buildDir, "e2e/gpu-probe"), "fill")
			out, err := cmd.StdoutPipe()
			must.NoError(t, err)
			must.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			lines := bufio.NewScanner(out)
			must.Eq(t, 1, event(t, lines, "look")["gpus"].(float64))
			event(t, lines, "full")
			record, err := sim.Record(t.Context())
			must.NoError(t, err)
			for _, g := range record.GPUs {
				must.Eq(t, g.UUID == tc.gpu, g.UsedBytes > 0, must.Sprint(g.UUID))
			}
		})
	}
}

// With host memory allowed the same program goes on beyond its limit, by exactly that much, and the GPU gives it no more
// than before: neither when it allocates nor when it computes.
func TestRunWithHostMemoryOnTheSimulatedGPU(t *testing.T) {
	sim, buildDir := simulatedNode(t)
	const limit, hostMemory = 1 << 30, 512 << 20
	taken := map[string]uint64{}
	for _, asked := range []string{"0", "512MiB"} {
		state, run := t.TempDir(), t.TempDir()
		cmd := tranche(t, sim, "run", "--memory", "1GiB", "--host-memory", asked, "--driver-root", sim.Root,
			"--shadow-dir", filepath.Join(buildDir, "lib"), "--state-dir", state, "--run-dir", run,
			"--", filepath.Join(buildDir, "e2e/gpu-probe"), "fill")
		out, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		lines := bufio.NewScanner(out)
		must.Eq(t, float64(limit), event(t, lines, "gpu")["cuDeviceTotalMem"].(float64))
		full := event(t, lines, "full")
		must.Eq(t, "CUDA_ERROR_OUT_OF_MEMORY", full["name"].(string))
		taken[asked] = uint64(full["taken"].(float64))
		event(t, lines, "computing")

		record, err := sim.Record(t.Context())
		must.NoError(t, err)
		must.LessEq(t, limit, record.GPUs[0].UsedBytes)
		for _, g := range record.Groups {
			must.LessEq(t, limit, g.PeakBytes)
		}
		if os.Geteuid() == 0 { // what others run does not show
			c := statusJSON(t, sim, state, run).Claims[0]
			if asked == "0" {
				must.Nil(t, c.Usage.Spill)
				must.Zero(t, c.GPUHostMemoryBytes)
			} else {
				must.Eq(t, hostMemory, c.GPUHostMemoryBytes)
				must.Eq(t, hostMemory, c.Usage.Spill.LimitBytes)
				must.Eq(t, hostMemory, c.Usage.Spill.UsedBytes)
			}
		}
		must.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		must.NoError(t, cmd.Wait())
	}
	must.Less(t, limit, taken["0"])
	must.Eq(t, hostMemory, taken["512MiB"]-taken["0"])
}

func event(t *testing.T, lines *bufio.Scanner, name string) map[string]any {
	t.Helper()
	for lines.Scan() {
		var e map[string]any
		must.NoError(t, json.Unmarshal(lines.Bytes(), &e), must.Sprint(lines.Text()))
		if e["event"] == name {
			return e
		}
	}
	t.Fatalf("the program ended without the event %q", name)
	return nil
}

// checkStatus checks that the host sees in the region what the simulator has on record.
func checkStatus(t *testing.T, sim *node.Sim, state, run, uuid string, held uint64) {
	t.Helper()
	r := statusJSON(t, sim, state, run)
	must.Len(t, 2, r.GPUs)
	const driverBytes = 64 << 20 // more than the driver keeps for itself, which NVML counts as used
	must.Between(t, held, r.GPUs[1].UsedBytes, held+driverBytes)
	if os.Geteuid() != 0 {
		return // what others than root run does not show
	}
	must.Len(t, 1, r.Claims)
	must.Eq(t, uuid, r.Claims[0].GPU.UUID)
	must.Eq(t, held, r.Claims[0].Usage.UsedBytes)
	must.Len(t, 1, r.Claims[0].Usage.Processes)
	must.Positive(t, r.Claims[0].Usage.Refused)
}

func statusJSON(t *testing.T, sim *node.Sim, state, run string) report.Report {
	t.Helper()
	out, err := tranche(t, sim, "status", "--json", "--driver-root", sim.Root, "--state-dir", state, "--run-dir", run).
		Output()
	must.NoError(t, err)
	var r report.Report
	must.NoError(t, json.NewDecoder(bytes.NewReader(out)).Decode(&r))
	return r
}
