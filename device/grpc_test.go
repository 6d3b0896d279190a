package device

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// pluginTypes are what Nomad asks a device plugin for.
func pluginTypes(impl ndevice.DevicePlugin) map[string]plugin.Plugin {
	return map[string]plugin.Plugin{
		base.PluginTypeBase:   &base.PluginBase{Impl: impl},
		base.PluginTypeDevice: &ndevice.PluginDevice{Impl: impl},
	}
}

// Nomad receives only the text of an error.
func TestReserve_errorAcrossGRPC(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), nil)
	// Closing the client stops the server.
	client, _ := plugin.TestPluginGRPCConn(t, false, pluginTypes(p))
	defer client.Close()
	raw, err := client.Dispense(base.PluginTypeDevice)
	must.NoError(t, err)
	remote := raw.(ndevice.DevicePlugin)

	reservation, err := remote.Reserve(sliceIDs(g, 0))
	must.NoError(t, err)
	ledger := p.node.Load().ledger
	made, err := ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c1", InitPID: os.Getpid()}))

	_, err = remote.Reserve(sliceIDs(g, 0))
	must.StrHasPrefix(t, "rpc error: code = Aborted desc = ", err.Error())
	must.StrHasSuffix(t, "nothing was changed, and the reservation can be retried", err.Error())
	_, err = remote.Reserve([]string{"x"})
	must.StrHasPrefix(t, `rpc error: code = FailedPrecondition desc = not devices of this node's GPUs: "x"`, err.Error())
}

// process is the plugin in a process of its own, started as Nomad does.
type process struct {
	ndevice.DevicePlugin
	client *plugin.Client
	cmd    *exec.Cmd
}

func startProcess(t *testing.T, options map[string]any) *process {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), servePlugin+"=1")
	p := launch(t, cmd)
	config := pluginConfig(t, options)
	config.ApiVersion = ndevice.ApiVersion010
	must.NoError(t, p.SetConfig(config))
	return p
}

// launch starts a plugin's program as Nomad does.
func launch(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  base.Handshake,
		Plugins:          pluginTypes(nil),
		Cmd:              cmd,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           hclog.New(&hclog.LoggerOptions{Output: t.Output(), Level: hclog.Trace}),
	})
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	must.NoError(t, err)
	raw, err := protocol.Dispense(base.PluginTypeDevice)
	must.NoError(t, err)
	return &process{raw.(ndevice.DevicePlugin), client, cmd}
}

// The whole plugin on the simulated driver, through what Nomad would go through:
// it is killed and started again, loses a GPU and gets it back.
func TestProcess(t *testing.T) {
	node := simtest.H200x2(t)
	options := testOptions(t, map[string]any{"driver_root": node.DriverRoot, "context_memory": "auto"})
	p := startProcess(t, options)
	stream := fingerprint(t, p)
	response := next(t, stream)
	must.NoError(t, response.Error)
	must.Eq(t, []string{"NVIDIA H200 #0", "NVIDIA H200 #1"}, groupNames(response))
	group := response.Devices[1]
	must.Len(t, 140, group.Devices)
	must.Eq(t, simtest.H200UUID1+"/slice-000", group.Devices[0].ID)
	must.Eq(t, "00000000:3B:00.0", group.Devices[0].HwLocality.PciBusID)
	must.Eq(t, 143771, *group.Attributes["memory"].Int)
	must.Eq(t, 9.0, *group.Attributes["compute_capability"].Float)
	must.Eq(t, 12.8, *group.Attributes["cuda_version"].Float)
	must.Eq(t, "570.124.06", *group.Attributes["driver_version"].String)

	ledger, err := claim.Open(claim.Options{StateDir: options["state_dir"].(string), RunDir: options["run_dir"].(string)})
	must.NoError(t, err)
	ids := []string{simtest.H200UUID1 + "/slice-000", simtest.H200UUID1 + "/slice-001"}
	reservation, err := p.Reserve(ids)
	must.NoError(t, err)
	made, err := ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	must.Eq(t, simtest.ContextBytes, made.GPU.ContextBytes, must.Sprint("the context's cost was not measured"))
	must.Eq(t, 2<<30, made.LimitBytes)

	must.NoError(t, p.cmd.Process.Kill())
	must.Error(t, next(t, stream).Error)
	p = startProcess(t, options)
	_, err = p.Reserve(ids)
	must.NoError(t, err, must.Sprint("a reservation before the first fingerprint"))

	stream = fingerprint(t, p)
	must.Eq(t, []string{"NVIDIA H200 #0", "NVIDIA H200 #1"}, groupNames(next(t, stream)))
	statistics := stats(t, p, 100*time.Millisecond)
	must.MapLen(t, 140, next(t, statistics).Groups[0].InstanceStats)
}
