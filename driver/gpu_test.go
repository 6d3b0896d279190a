package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/size"
	"github.com/tranche-gpu/tranche/runtime/shadowtest"
)

const (
	testGPU    = "GPU-11111111-1111-1111-1111-111111111111"
	testLibDir = "/usr/lib/x86_64-linux-gnu"
)

// noVisibleDevices is the entry that every container has.
const noVisibleDevices = claim.VisibleDevices + "=" + claim.NoDevices

// gpuNode lays out a driver root, shadow libraries and a hook that does nothing. The driver's library is text that
// says so, and so is the last line of a shadow.
func gpuNode(t *testing.T, config *spec.Config) {
	t.Helper()
	dir := t.TempDir()
	// As on a node: root in a user namespace runs the hook and reads the shadow libraries by their paths.
	for above := dir; above != "/"; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		must.NoError(t, err)
		must.NoError(t, os.Chmod(above, info.Mode()|0o011))
	}
	config.DriverRoot = filepath.Join(dir, "root")
	config.ShadowDir = filepath.Join(dir, "shadow")
	config.HookPath = filepath.Join(dir, "tranche-hook")
	config.StateDir, config.RunDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	claimtest.RemoveRegions(t, config.RunDir)
	library := filepath.Join(config.DriverRoot, testLibDir, "libcuda.so.570.1")
	spec := `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [{"name": "` + testGPU + `",
		"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}}],
		"containerEdits": {"mounts": [{"hostPath": "` + library + `",
		"containerPath": "` + testLibDir + `/libcuda.so.1", "options": ["ro", "nosuid", "nodev", "bind"]}]}}`
	shadowtest.Write(t, config.ShadowDir)
	for file, content := range map[string]string{
		library: "driver's libcuda",
		filepath.Join(config.DriverRoot, "etc/cdi/gpu.json"): spec,
		config.HookPath: "#!/bin/sh\ncat >/dev/null\n",
	} {
		must.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.NoError(t, os.WriteFile(file, []byte(content), 0o755))
	}
}

func TestGPU_FractionInARealContainer(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	gpuNode(t, &config)
	config.GPUHostMemoryMax = "4GiB"
	d := newTestDriverWith(t, n, config)
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	made, token, err := ledger.Reserve(d.ctx, claim.Request{
		GPU:    claim.GPU{UUID: testGPU, Index: 0, Name: "NVIDIA H200", ContextBytes: 300 * size.MiB},
		Slices: []string{testGPU + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)

	cfg := d.task("tail -n 1 "+testLibDir+"/libcuda.so.1; ls -d /dev/nvidia* /.tranche/claims/*; env; "+
		"od -An -v -tu8 -j136 -N8 /.tranche/claims/*/limit; echo end", func(c *spec.TaskConfig) { c.GPUHostMemory = "4GiB" })
	cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal(), "NVIDIA_VISIBLE_DEVICES": "void"}
	for key, value := range cfg.DeviceEnv {
		cfg.Env[key] = value
	}
	_, out := d.run(cfg, "end")
	must.StrContains(t, out, "shadow libcuda")
	must.StrContains(t, out, "/dev/nvidia0")
	must.StrContains(t, out, "/.tranche/claims/"+made.ID)
	must.StrContains(t, out, noVisibleDevices)
	must.StrNotContains(t, out, token.Reveal())
	must.StrNotContains(t, out, claim.EnvPrefix)
	must.StrContains(t, out, " 4294967296\n") // of host memory, as the region says
	for _, event := range []string{
		"GPU memory: 1GiB of NVIDIA H200 #0 (" + testGPU + ")",
		"GPU memory beyond the limit of claim " + made.ID + ": 4GiB, on the host",
	} {
		eventually(t, "the event", func() bool { return strings.Contains(strings.Join(d.events.all(), "\n"), event) })
	}

	// More than the node allows, and none without a GPU.
	for asked, want := range map[string]string{"5GiB": "gpu_host_memory_max", "1GiB": "has no GPU"} {
		greedy := d.failing(func(c *spec.TaskConfig) { c.GPUHostMemory = asked })
		_, _, err = d.StartTask(greedy)
		must.ErrorContains(t, err, "option gpu_host_memory")
		must.ErrorContains(t, err, want)
		d.nothingLeft(greedy)
	}

	// The same claim without a device plugin that gave it.
	thief := d.failing()
	thief.Env[token.EnvName()] = token.Reveal()
	_, _, err = d.StartTask(thief)
	must.ErrorContains(t, err, token.EnvName())
	must.StrNotContains(t, err.Error(), token.Reveal())
	d.nothingLeft(thief)

	// A claim that the ledger does not know.
	stranger := d.failing()
	stranger.DeviceEnv = map[string]string{"TRANCHE_CLAIM_00000000": strings.Repeat("0", 32)}
	_, _, err = d.StartTask(stranger)
	must.ErrorContains(t, err, "claim")
	d.nothingLeft(stranger)
}

// What Nomad executes in a task sees no more of its claim than the task does.
func TestGPU_ExecSeesNoToken(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	gpuNode(t, &config)
	d := newTestDriverWith(t, n, config)
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	_, token, err := ledger.Reserve(d.ctx, claim.Request{
		GPU: claim.GPU{UUID: testGPU}, Slices: []string{testGPU + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	cfg := d.task("sleep 600")
	cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal()}
	cfg.Env[token.EnvName()], cfg.Env["GREETING"] = token.Reveal(), "hello"
	d.start(cfg)
	result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "env"}, time.Minute)
	must.NoError(t, err)
	must.StrContains(t, string(result.Stdout), "GREETING=hello\n")
	must.StrContains(t, string(result.Stdout), noVisibleDevices+"\n")
	must.StrNotContains(t, string(result.Stdout), claim.EnvPrefix)
}

// Hooks run under the container's pids_limit.
func TestGPU_PidsLimit(t *testing.T) {
	needs.Sandbox(t, "to run the hook")
	n := requireNode(t)
	config := n.config()
	gpuNode(t, &config)
	config.HookPath = filepath.Join(os.Getenv("TRANCHE_BUILD"), "bin/tranche-hook")
	d := newTestDriverWith(t, n, config)
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	for _, limit := range []int64{1, 7} {
		_, token, err := ledger.Reserve(d.ctx, claim.Request{
			GPU: claim.GPU{UUID: testGPU}, Slices: []string{testGPU + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		})
		must.NoError(t, err)
		cfg := d.failing(func(o *spec.TaskConfig) { o.PidsLimit = limit })
		cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal()}
		_, _, err = d.driver.StartTask(cfg)
		must.EqError(t, err, fmt.Sprintf("start the container: pids_limit = %d is too low for the programs that start it and prepare "+
			"its GPU; set at least 32", limit))
		d.nothingLeft(cfg)
	}
}

func TestGPU_NoneWithoutADeviceBlock(t *testing.T) {
	d := newTestDriver(t)
	image := d.node.reference
	cfg := d.task("ls /dev/nvidia* /.tranche 2>/dev/null; env; echo end", func(c *spec.TaskConfig) { c.Image = image })
	cfg.Env["NVIDIA_VISIBLE_DEVICES"] = "all"
	_, out := d.run(cfg, "end")
	must.StrContains(t, out, noVisibleDevices+"\n")
	must.StrNotContains(t, out, "=all")
	must.StrNotContains(t, out, "/dev/nvidia")
	must.StrNotContains(t, out, "/.tranche")
}

func TestStart_RemovesOlderContainers(t *testing.T) {
	d := newTestDriver(t)
	first := d.task("sleep 600")
	d.start(first)

	d = d.restart() // It knows nothing of the first.
	second := d.task("echo second")
	other := *second
	other.AllocID, other.Name = first.AllocID, first.Name
	other.ID = first.AllocID + "/" + first.Name + "/later"
	result, _ := d.run(&other, "second")
	must.Zero(t, result.ExitCode)
	d.nothingLeft(first)

	// And the very same task, as when the plugin dies in the midst of StartTask and Nomad asks again.
	d = d.restart()
	_, _, err := d.StartTask(&other)
	must.NoError(t, err)
	must.NoError(t, d.DestroyTask(other.ID, true))
	d.nothingLeft(&other)
}

func TestStart_Twice(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("sleep 600")
	d.start(cfg)
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, "started already")
	must.ErrorContains(t, d.DestroyTask(cfg.ID, false), "the task runs")
	_, err = d.InspectTask(cfg.ID)
	must.NoError(t, err)
}

// A claim is not given up while its container's image is pulled.
func TestStart_RefreshesItsClaimsWhileItPulls(t *testing.T) {
	n, config, claims := killedNode(t)
	d := newTestDriverWith(t, n, config)
	d.driver.claims.RefreshPeriod = 10 * time.Millisecond
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, n.busybox, "long:1", 1)
	held := newGate()
	reg.spoilWith(onGet(layer, held.pass))
	cfg := d.failing(func(c *spec.TaskConfig) { c.Image = ref })
	claims.reserve(t, cfg)
	made, _, err := claims.List(t.Context())
	must.NoError(t, err)
	wait := d.startAll([]*drivers.TaskConfig{cfg})
	eventually(t, "the pull", func() bool { return reg.gets(layer) > 0 })
	before := claims.Refreshed(made[0])
	refreshed := waitFor(func() bool { return claims.Refreshed(made[0]).After(before) })
	close(held.opened)
	must.NoError(t, wait()[0])
	must.True(t, refreshed)
}
