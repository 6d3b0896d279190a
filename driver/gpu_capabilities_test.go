package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// A task gets of the driver what its environment asks for, and fails where the plugin's option does not allow that.
func TestGPU_DriverCapabilities(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	gpuNode(t, &config)
	config.DriverCapabilities = "compute,utility"
	d := newTestDriverWith(t, n, config)
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	_, token, err := ledger.Reserve(d.ctx, claim.Request{
		GPU: claim.GPU{UUID: testGPU}, Slices: []string{testGPU + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	asking := func(cfg *drivers.TaskConfig, capabilities string) *drivers.TaskConfig {
		cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal(), "NVIDIA_VISIBLE_DEVICES": "void"}
		for key, value := range cfg.DeviceEnv {
			cfg.Env[key] = value
		}
		cfg.Env["NVIDIA_DRIVER_CAPABILITIES"] = capabilities
		return cfg
	}

	script := "ls /dev/nvidia0; ls " + testLibDir + "/libcuda.so.1 || echo without; echo end"
	_, out := d.run(asking(d.task(script), "all"), "end")
	must.StrContains(t, out, testLibDir+"/libcuda.so.1")
	_, out = d.run(asking(d.task(script), "utility"), "end")
	must.StrContains(t, out, "/dev/nvidia0")
	must.StrContains(t, out, "without")

	refused := asking(d.failing(), "compute,video")
	_, _, err = d.StartTask(refused)
	for _, named := range []string{"NVIDIA_DRIVER_CAPABILITIES", "video", "compute,utility", "driver_capabilities"} {
		must.ErrorContains(t, err, named)
	}
	d.nothingLeft(refused)
}
