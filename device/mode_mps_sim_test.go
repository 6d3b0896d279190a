package device

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/internal/needs"
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

// A GPU goes behind the simulated daemon, stays through restarts of the plugin and an absence from the bus, and leaves.
func TestMPS_simulated(t *testing.T) {
	needs.Root(t, "to start an MPS control daemon")
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
		return p, func() { p.node.Load().daemons.Close() }
	}
	first, end := start()
	t.Cleanup(func() {
		keeper := first.node.Load().daemons.Manager
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
	must.True(t, second.node.Load().daemons.Manager.Status(simtest.H200UUID1).Running)
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
	left, err := third.node.Load().daemons.Manager.Left()
	must.NoError(t, err)
	must.SliceEmpty(t, left)
}

// mpsOnSimulator is a plugin on simulated GPUs, the second of which is in mode mps. What is returned makes another one, as
// after a restart of the agent.
func mpsOnSimulator(t *testing.T) (node *simtest.Node, start func() *Plugin) {
	t.Helper()
	needs.Root(t, "to start an MPS control daemon")
	node = simtest.H200x2(t)
	gpus := nvml.New(node.DriverRoot)
	runDir, err := os.MkdirTemp("", "mps")
	must.NoError(t, err)
	options := testOptions(t, map[string]any{
		"driver_root": node.DriverRoot, "run_dir": runDir, "slice_memory": "10GiB",
		"gpu": gpuBlocks(map[string]any{"gpu": "index:1", "mode": "mps"}),
	})
	var last *Plugin
	t.Cleanup(func() {
		keeper := last.node.Load().daemons.Manager
		keeper.Close()
		_ = keeper.Release(context.Background(), simtest.H200UUID1)
		must.NoError(t, gpus.Close(context.Background()))
		must.NoError(t, os.RemoveAll(runDir))
	})
	return node, func() *Plugin {
		last = newPlugin(t, gpus, options)
		return last
	}
}

// pastMPS starts a program that knows nothing of MPS and takes all of a GPU's memory. It returns when the program says a
// line that has one of the texts in it, and which it was.
func pastMPS(t *testing.T, node *simtest.Node, texts ...string) (pid int, said string) {
	t.Helper()
	probe, err := filepath.Abs("../build/e2e/gpu-probe")
	must.NoError(t, err)
	command := exec.CommandContext(t.Context(), probe, "fill")
	command.Env = append(node.SMIEnv(), "CUDA_VISIBLE_DEVICES="+simtest.H200UUID1)
	stdout, err := command.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		for _, text := range texts {
			if strings.Contains(lines.Text(), text) {
				return command.Process.Pid, text
			}
		}
	}
	t.Fatalf("the program said nothing of %q", texts)
	return 0, ""
}

// Nobody gets past the daemon, not even while there is no client yet; who was quicker makes the GPU unhealthy and is named.
func TestMPSSim_NoBypass(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		node, start := mpsOnSimulator(t)
		first := start()
		ctx, cancel := contextWithCancel(t)
		stream, err := first.Fingerprint(ctx)
		must.NoError(t, err)
		must.MapEmpty(t, unhealthy(next(t, stream).Devices[1]))
		_, said := pastMPS(t, node, "CUDA_ERROR_DEVICE_UNAVAILABLE", `"computing"`)
		must.Eq(t, "CUDA_ERROR_DEVICE_UNAVAILABLE", said)
		cancel()
		drain(stream)

		// The agent is away, and the daemon is ended.
		must.NoError(t, first.node.Load().daemons.Manager.Stop(t.Context(), simtest.H200UUID1))
		quicker, _ := pastMPS(t, node, `"computing"`)
		second := start()
		stream = fingerprint(t, second)
		reasons := unhealthy(next(t, stream).Devices[1])
		must.MapLen(t, 14, reasons)
		for _, reason := range reasons {
			must.StrContains(t, reason, fmt.Sprintf("is used without its MPS control daemon, by process %d: end it", quicker))
		}
		_, err = second.Reserve([]string{claim.SliceName(simtest.H200UUID1, 0)})
		must.ErrorContains(t, err, fmt.Sprint("by process ", quicker))
		must.NoError(t, unix.Kill(quicker, unix.SIGKILL))
		for len(unhealthy(next(t, stream).Devices[1])) > 0 { // its memory may be published before
		}
		_, said = pastMPS(t, node, "CUDA_ERROR_DEVICE_UNAVAILABLE", `"computing"`)
		must.Eq(t, "CUDA_ERROR_DEVICE_UNAVAILABLE", said)
	})
}

// A daemon whose sockets are removed is replaced, and leaves its GPU, without anybody asking for either.
func TestMPSSim_pipeRemoved(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		_, start := mpsOnSimulator(t)
		p := start()
		keeper := p.node.Load().daemons.Manager
		stream := fingerprint(t, p)
		must.MapEmpty(t, unhealthy(next(t, stream).Devices[1]))
		must.NoError(t, os.RemoveAll(filepath.Join(p.node.Load().runDir, "mps", simtest.H200UUID1, "pipe")))
		// The daemon ends by itself when its sockets are gone, before or after it was queried.
		down := regexp.MustCompile("the MPS control daemon does not run: it (does not answer|ended)")
		for _, reason := range unhealthy(next(t, stream).Devices[1]) {
			must.RegexMatch(t, down, reason)
		}
		for len(unhealthy(next(t, stream).Devices[1])) > 0 {
		}
		clients, err := keeper.Clients(t.Context(), simtest.H200UUID1)
		must.NoError(t, err)
		must.SliceEmpty(t, clients)
	})
}
