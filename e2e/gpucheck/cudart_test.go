//go:build gpucheck

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// cudartPrograms are the programs of CUDA's runtime library that the bundle has: those of make gpu-check-cudart.
func cudartPrograms(t *testing.T, s *stage) []string {
	t.Helper()
	programs, err := filepath.Glob(filepath.Join(s.dir, "gpu-check/bin/cudart-*"))
	must.NoError(t, err)
	if len(programs) == 0 {
		t.Skip("the bundle has no program of cudart: make gpu-check-cudart-test")
	}
	must.SliceLen(t, 2, programs)
	return programs
}

// Without a GPU each says so, and does not crash: with no driver at all, with NVIDIA's, with the simulated one, which the
// library does not accept, and before each of them traced.
func TestCudart_noGPU(t *testing.T) {
	s := newStage(t)
	nvidias := filepath.Join(s.build, "nvidia/550/usr/lib/x86_64-linux-gnu/nvidia/current")
	for _, program := range cudartPrograms(t, s) {
		for _, tc := range []struct {
			name, library, want string
			env                 []string
		}{
			{"no driver", "/nonexistent", "cudaErrorInsufficientDriver: ", nil},
			{"NVIDIA's driver", nvidias, "cudaErrorNoDevice: no CUDA-capable device is detected", nil},
			{"the simulated driver", "", "cudaError", s.env},
		} {
			for _, traced := range []bool{false, true} {
				t.Run(filepath.Base(program)+"/"+tc.name, func(t *testing.T) {
					cmd := exec.Command(program, "268435456")
					cmd.Env = tc.env
					if tc.library != "" {
						cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+tc.library)
					}
					if traced {
						cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(s.dir, "gpu-check/lib/trace.so"))
					}
					out, err := cmd.CombinedOutput()
					must.Eq(t, noCUDA, cmd.ProcessState.ExitCode(), must.Sprint(err, string(out)))
					must.StrContains(t, lastLine(withoutTrace(string(out))), tc.want)
					must.Eq(t, traced && tc.library != "/nonexistent", strings.Contains(string(out), "trace: call cuInit\n"),
						must.Sprint(string(out)))
				})
			}
		}
	}
}

// The whole check on the simulated GPU, where these programs are not possible, and the rest passes as without them.
func TestCudart_simulated(t *testing.T) {
	s := newStage(t)
	programs := cudartPrograms(t, s)
	status, report := s.check(t, 0)
	must.Eq(t, 0, status)
	all := verdicts(report)
	for _, program := range programs {
		version := strings.TrimPrefix(filepath.Base(program), "cudart-")
		must.Eq(t, "not possible", all["cudart "+version])
		must.Eq(t, "not possible", all["cudart "+version+", traced"])
	}
	must.Eq(t, "passed", all["cuMemAlloc"])
}
