package device

import (
	"context"
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/device/internal/simtest"
	"tranche.dev/tranche/device/nvml"
)

// computeModes are the compute modes of the GPUs.
func computeModes(t *testing.T, gpus nvml.Interface) [2]nvml.ComputeMode {
	t.Helper()
	var modes [2]nvml.ComputeMode
	for i, uuid := range []string{simtest.H200UUID0, simtest.H200UUID1} {
		health, err := gpus.Health(t.Context(), uuid)
		must.NoError(t, err)
		modes[i] = *health.ComputeMode
	}
	return modes
}

// A GPU's way behind the simulated daemon, through restarts of the plugin and away from the bus, and back.
func TestMPS_simulated(t *testing.T) {
	simtest.RequireRoot(t, "to start an MPS control daemon")
	node := simtest.H200x2(t)
	gpus := nvml.New(node.DriverRoot)
	runDir, err := os.MkdirTemp("", "mps")
	must.NoError(t, err)
	options := testOptions(t, map[string]any{
		"driver_root": node.DriverRoot, "run_dir": runDir, "context_memory": "auto", "slice_memory": "10GiB",
		"gpu": gpuBlocks(map[string]any{"gpu": "index:1", "mode": "mps"}),
	})
	start := func() (p *Plugin, end func()) {
		p = newPlugin(t, gpus, options)
		must.NoError(t, p.SetConfig(pluginConfig(t, options)))
		return p, func() { p.node.Load().mps.close() }
	}
	first, end := start()
	t.Cleanup(func() {
		keeper := first.node.Load().mps.keeper
		keeper.Close()
		_ = keeper.Release(context.Background(), simtest.H200UUID1)
		must.NoError(t, gpus.Close(context.Background()))
		must.NoError(t, os.RemoveAll(runDir))
	})
	_, err = first.Reserve([]string{claim.SliceName(simtest.H200UUID1, 0)})
	must.NoError(t, err)
	made := claimsOf(t, first)[0]
	must.Eq(t, simtest.ContextBytes, made.GPU.ContextBytes)
	must.Eq(t, &claim.MPS{Percentage: 8}, made.MPS, must.Sprint("one of 14"))
	must.Eq(t, [2]nvml.ComputeMode{nvml.ComputeDefault, nvml.ComputeExclusiveProcess}, computeModes(t, gpus))
	end()

	// The next one finds the daemon, and what a context costs.
	second, end := start()
	ctx, cancel := contextWithCancel(t)
	stream, err := second.Fingerprint(ctx)
	must.NoError(t, err)
	groups := next(t, stream).Devices
	must.Eq(t, []string{"slice NVIDIA H200 #0: ++++++++++++++", "slice NVIDIA H200 #1: ++++++++++++++"}, lines(groups))
	_, err = second.Reserve([]string{claim.SliceName(simtest.H200UUID1, 1)})
	must.NoError(t, err)

	// Off the bus, and back.
	node.Run(t, "fault", "lost", "1", "on")
	must.MapLen(t, 14, unhealthy(next(t, stream).Devices[1]))
	node.Run(t, "fault", "lost", "1", "off")
	for healthy := 0; healthy != 14; {
		healthy = 14 - len(unhealthy(next(t, stream).Devices[1]))
	}
	must.True(t, second.node.Load().mps.keeper.Status(simtest.H200UUID1).Running)
	cancel()
	drain(stream)
	end()

	// In another mode it is as it was before.
	for _, c := range claimsOf(t, second) {
		must.NoError(t, second.node.Load().ledger.Drop(t.Context(), c.ID))
	}
	delete(options, "gpu")
	third, _ := start()
	for _, group := range next(t, fingerprint(t, third)).Devices {
		must.MapEmpty(t, unhealthy(group))
	}
	must.Eq(t, [2]nvml.ComputeMode{nvml.ComputeDefault, nvml.ComputeDefault}, computeModes(t, gpus))
	left, err := third.node.Load().mps.keeper.Left()
	must.NoError(t, err)
	must.SliceEmpty(t, left)
}
