package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
)

// gpuModes is a driver on a node with a GPU, and its ledger.
type gpuModes struct {
	*testDriver
	config spec.Config
	ledger *claim.Ledger
}

func newGPUModes(t *testing.T) *gpuModes {
	t.Helper()
	n := requireNode(t)
	config := n.config()
	gpuNode(t, &config)
	config.GPUHostMemoryMax = "4GiB"
	d := newTestDriverWith(t, n, config)
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	return &gpuModes{d, config, ledger}
}

// reserved gives a task what the device plugin gives it for a claim on the GPU.
func (m *gpuModes) reserved(cfg *drivers.TaskConfig, mode claim.Mode, mps *claim.MPS, visible string) *claim.Claim {
	made, token, err := m.ledger.Reserve(m.ctx, claim.Request{
		GPU: claim.GPU{UUID: testGPU, Name: "NVIDIA H200"}, Slices: []string{testGPU}, LimitBytes: 3 << 30,
		Owner: claim.OwnerNomad, Mode: mode, MPS: mps,
	})
	must.NoError(m.t, err)
	cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal(), "NVIDIA_VISIBLE_DEVICES": visible}
	for key, value := range cfg.DeviceEnv {
		cfg.Env[key] = value
	}
	return made
}

// A task that has the whole GPU has the driver as it is.
func TestGPU_Exclusive(t *testing.T) {
	m := newGPUModes(t)
	cfg := m.task("cat " + testLibDir + "/libcuda.so.1; echo; ls -d /dev/nvidia*; ls -d /.tranche || echo bare; env; echo end")
	made := m.reserved(cfg, claim.ModeExclusive, nil, testGPU)
	_, out := m.run(cfg, "end")
	for _, want := range []string{"driver's libcuda\n", "/dev/nvidia0\n", "bare\n", noVisibleDevices + "\n"} {
		must.StrContains(t, out, want)
	}
	must.StrNotContains(t, out, claim.EnvPrefix)
	event := "GPU: NVIDIA H200 #0 (" + testGPU + "), all of it, claim " + made.ID
	eventually(t, "the event", func() bool { return strings.Contains(strings.Join(m.events.all(), "\n"), event) })

	beyond := m.failing(func(c *spec.TaskConfig) { c.GPUHostMemory = "1GiB" })
	m.reserved(beyond, claim.ModeExclusive, nil, testGPU)
	_, _, err := m.StartTask(beyond)
	must.ErrorContains(t, err, "option gpu_host_memory: the task's GPUs have no limit")
	m.nothingLeft(beyond)
}

// A task behind an MPS control daemon has its pipes and its shared memory, and starts again later where it is down.
func TestGPU_MPS(t *testing.T) {
	m := newGPUModes(t)
	share := &claim.MPS{Percentage: 7}
	early := m.failing()
	m.reserved(early, claim.ModeMPS, share, "void")
	_, _, err := m.StartTask(early)
	must.ErrorContains(t, err, "the MPS control daemon of GPU "+testGPU+" does not run")
	must.True(t, recoverable.Is(err))
	m.nothingLeft(early)

	dir := mpsdir.Of(m.config.RunDir, testGPU)
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "shm"), 0o777))
	must.NoError(t, os.Chmod(filepath.Join(dir, "shm"), 0o777))
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "client"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "client/control"), []byte("the daemon's"), 0o644))
	cfg := m.task("tail -n 1 " + testLibDir + "/libcuda.so.1; cat /tmp/nvidia-mps/control; echo; echo client >/dev/shm/seen; env; echo end")
	cfg.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "100"
	made := m.reserved(cfg, claim.ModeMPS, share, "void")
	_, out := m.run(cfg, "end")
	for _, want := range []string{
		"shadow libcuda", "the daemon's\n", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=7\n", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3072M\n",
		"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps\n",
	} {
		must.StrContains(t, out, want)
	}
	seen, err := os.ReadFile(filepath.Join(dir, "shm/seen"))
	must.NoError(t, err)
	must.Eq(t, "client\n", string(seen))
	event := "behind an MPS control daemon with at most 7% of the GPU at once, claim " + made.ID
	eventually(t, "the event", func() bool { return strings.Contains(strings.Join(m.events.all(), "\n"), event) })
}
