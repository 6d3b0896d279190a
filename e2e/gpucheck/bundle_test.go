//go:build gpucheck

package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// nobody is a user without rights.
const nobody = 65534

// stage is a machine with a simulated GPU, as far as the bundle can tell, and the bundle unpacked on it.
type stage struct {
	dir, build string
	sim        *node.Sim
	env        []string
}

// newStage unpacks the bundle where anybody may run it. The simulated driver is found through the loader's own path.
func newStage(t *testing.T) *stage {
	t.Helper()
	build := os.Getenv("TRANCHE_BUILD")
	if build == "" {
		t.Fatal("TRANCHE_BUILD has to say where things were built: make gpu-check-test")
	}
	dir, err := os.MkdirTemp("", "gpu-check-test-")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must.NoError(t, os.Chmod(dir, 0o777))
	archive := cmp.Or(os.Getenv("GPU_CHECK"), "gpu-check") + ".tar.gz"
	out, err := exec.Command("tar", "-C", dir, "-xzf", filepath.Join(build, archive)).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))

	s := &stage{dir: dir, build: build, sim: node.NewSim(build, filepath.Join(dir, "root"))}
	must.NoError(t, s.sim.LayOut(t.Context(), "../simgpu/topologies/h200x2.conf"))
	libraries, err := filepath.Glob(filepath.Join(s.sim.Root, "usr/lib/*/libcuda.so.1"))
	must.NoError(t, err)
	must.SliceLen(t, 1, libraries)
	// No Go there, and nothing of this repository.
	s.env = append([]string{
		"PATH=" + filepath.Join(s.sim.Root, "usr/bin") + ":/usr/bin:/bin", "HOME=/nonexistent",
		"LD_LIBRARY_PATH=" + filepath.Dir(libraries[0]),
	}, s.sim.Env()...)
	return s
}

// check runs the one command, as a user, and returns its exit status and its report.
func (s *stage) check(t *testing.T, uid uint32, env ...string) (status int, report string) {
	t.Helper()
	return s.run(t, uid, env)
}

func (s *stage) run(t *testing.T, uid uint32, env []string, args ...string) (status int, report string) {
	t.Helper()
	file := filepath.Join(s.dir, "gpu-check-report.md")
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.dir, "gpu-check/gpu-check"), args...)
	cmd.Dir = s.dir
	cmd.Env = slices.Concat(s.env, env)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, _ := cmd.CombinedOutput()
	t.Logf("%s", out)
	text, err := os.ReadFile(file)
	must.NoError(t, err)
	must.NoError(t, os.Remove(file))
	return cmd.ProcessState.ExitCode(), string(text)
}

// verdicts are the checks of a report and what came of each.
func verdicts(report string) map[string]string {
	found := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]+ \| ([^|]+) \| (passed|FAILED|not possible) \| (.*) \|$`).
		FindAllStringSubmatch(report, -1) {
		found[row[1]] = row[2]
	}
	return found
}

func checkReport(t *testing.T, report string, torch bool) {
	t.Helper()
	must.StrHasPrefix(t, "# gpu-check\n\n> **THE GPU IS SIMULATED.**", report)
	must.StrContains(t, report, "| GPU | NVIDIA H200 |")
	must.StrContains(t, report, "| driver | 570.124.06 |")
	must.StrContains(t, report, "| cost of a context | 300 MiB (NVML, of the process) |")
	for _, section := range []string{"## What was counted and what was taken", "## Overhead",
		"## Compute shares\n\nSIMULATED: Compute shares on NVIDIA H200", "## The driver's functions", "## What the driver does by itself"} {
		must.StrContains(t, report, section)
	}
	must.StrContains(t, report, "server and first client take 600 MiB of the whole GPU; NVML shows the client with 300 MiB")
	all := verdicts(report)
	must.Greater(t, 50, len(all))
	for name, verdict := range all {
		python := strings.Contains(name, "PyTorch")
		if (python && (!torch || strings.HasPrefix(name, "NCCL"))) || strings.HasPrefix(name, "cudart") ||
			strings.HasPrefix(name, "llama.cpp") {
			must.Eq(t, "not possible", verdict, must.Sprint(name))
		} else {
			must.Eq(t, "passed", verdict, must.Sprint(name))
		}
	}
}

// PyTorch is a stand-in here (testdata/torch): what the report says of it shows that our own Python runs, no more.
func TestBundle_root(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this is not root")
	}
	s := newStage(t)
	status, report := s.check(t, 0, standIn(t)...)
	checkReport(t, report, len(standIn(t)) > 0)
	must.StrContains(t, report, "| run as | root |")
	must.Eq(t, 0, status)

	record, err := s.sim.Record(t.Context())
	must.NoError(t, err)
	for _, gpu := range record.GPUs {
		must.Zero(t, gpu.UsedBytes, must.Sprint("something was left on the GPU"))
	}
}

func TestBundle_user(t *testing.T) {
	uid := uint32(nobody)
	if os.Geteuid() != 0 {
		uid = 0 // as it is
	}
	s := newStage(t)
	status, report := s.check(t, uid)
	checkReport(t, report, false)
	must.StrNotContains(t, report, "| run as | root |")
	must.Eq(t, 0, status)
}

// A shadow library that lets everything through: every check of a limit fails, and nothing is taken without bounds.
func TestBundle_failures(t *testing.T) {
	s := newStage(t)
	for _, name := range []string{"libcuda", "libnvidia-ml"} {
		soname := name + ".so.1"
		file := filepath.Join(s.dir, "gpu-check/lib", soname)
		must.NoError(t, os.Remove(file))
		out, err := exec.Command("gcc", "-shared", "-o", file, "testdata/stub.c", "-Wl,-soname,"+soname, "-Wl,--no-as-needed",
			filepath.Join(s.build, "intercept/driver-"+name+".so")).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	status, report := s.check(t, 0, standIn(t)...)
	must.Eq(t, 1, status)
	must.StrContains(t, report, "What failed:")
	all := verdicts(report)
	for name, verdict := range all {
		if name == "cuGreenCtxCreate" {
			continue // it takes little, so the bound on how many comes before the limit
		}
		for _, limited := range []string{"cuMem", "cuArray", "cuCtxCreate", "variable", "an array", "heap", "share one limit",
			"NVML: memory", "nvidia-smi", "PyTorch, "} {
			if strings.Contains(name, limited) && verdict != "not possible" {
				must.Eq(t, "FAILED", verdict, must.Sprint(name))
			}
		}
	}
	must.Eq(t, "FAILED", all["cuMemAlloc"])
	record, err := s.sim.Record(t.Context())
	must.NoError(t, err)
	for _, group := range record.Groups {
		must.Less(t, 8<<30, group.PeakBytes, must.Sprint("far more was taken than the limit of 4 GiB"))
	}
}

func TestBundle_noGPU(t *testing.T) {
	s := newStage(t)
	status, report := s.check(t, 0, "LD_LIBRARY_PATH=")
	must.Eq(t, 2, status)
	must.StrContains(t, report, "nothing was checked: there is no GPU to check")
}

func TestBundle_only(t *testing.T) {
	s := newStage(t)
	status, report := s.run(t, 0, nil, "-only", "shares")
	must.Eq(t, 2, status)
	must.StrContains(t, report, `nothing was checked: -only: no group of checks is called "shares": name one of every way to allocate`)
	status, report = s.run(t, 0, nil, "-only", "facts")
	must.Eq(t, 0, status)
	must.MapLen(t, 1, verdicts(report))
}

// standIn is the environment that leads to the stand-in for PyTorch; empty where there is no Python.
func standIn(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Log("there is no Python here: the checks of PyTorch are not tried, not even with a stand-in")
		return nil
	}
	dir, err := filepath.Abs("testdata/torch")
	must.NoError(t, err)
	return []string{"PYTHONPATH=" + dir}
}
