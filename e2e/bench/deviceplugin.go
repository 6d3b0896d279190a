package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/device/proto"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

const (
	// deviceGPUs is how many GPUs the simulated node has whose device plugin is measured, and deviceSlices how many
	// slices each of them is cut into.
	deviceGPUs   = 8
	deviceSlices = 141
	// deviceSliceMemory makes so many of the simulated GPUs' memory.
	deviceSliceMemory = "1010MiB"
	// contextMemory is what the plugin takes for a context's cost, which it would measure once otherwise.
	contextMemory = "300MiB"
)

// deviceNode is a node of eight simulated GPUs on which the device plugin is measured.
type deviceNode struct {
	binary string
	dir    string
	sim    *node.Sim
	logger hclog.Logger
	log    *os.File
	// ledgers is how many ledgers there have been. Each process of the plugin gets a new one.
	ledgers int
}

func (b *bench) newDeviceNode(ctx context.Context) (*deviceNode, error) {
	n := &deviceNode{binary: filepath.Join(b.build, "bin/nomad-device-tranche"), dir: filepath.Join(b.dir, "device")}
	n.sim = node.NewSim(b.build, filepath.Join(n.dir, "driver"))
	if err := os.MkdirAll(n.sim.Root, 0o755); err != nil {
		return nil, err
	}
	if err := n.sim.LayOut(ctx, filepath.Join(b.build, "../e2e/simgpu/topologies/h200x8.conf")); err != nil {
		return nil, err
	}
	var err error
	if n.log, err = os.Create(filepath.Join(n.dir, "plugin.log")); err != nil {
		return nil, err
	}
	n.logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: n.log})
	return n, nil
}

// devicePlugin is the device plugin in a process of its own, with a ledger of its own.
type devicePlugin struct {
	ndevice.DevicePlugin
	// messages is the same plugin, by the messages of the protocol as they are.
	messages proto.DevicePluginClient
	process  *pluginProcess
	ledger   *claim.Ledger
}

// startFilled starts a plugin whose ledger holds so many claims, as old as those of a node at work. It also returns the UUIDs
// of the GPUs.
func (n *deviceNode) startFilled(ctx context.Context, claims int) (p *devicePlugin, uuids []string, err error) {
	if p, err = n.start(nil); err != nil {
		return nil, nil, err
	}
	if uuids, err = n.uuids(ctx); err == nil {
		err = fill(ctx, p.ledger, uuids, claims)
	}
	if err == nil {
		err = age(ctx)
	}
	if err != nil {
		p.stop()
		return nil, nil, err
	}
	return p, uuids, nil
}

// start starts the plugin with options beside those that every agent's configuration has.
func (n *deviceNode) start(options map[string]any) (*devicePlugin, error) {
	n.ledgers++
	state, run := filepath.Join(n.dir, fmt.Sprint("state-", n.ledgers)), filepath.Join(n.dir, fmt.Sprint("run-", n.ledgers))
	ledger, err := claim.Open(claim.Options{StateDir: state, RunDir: run})
	if err != nil {
		return nil, err
	}
	process, raw, err := startPlugin(n.binary, n.sim.Env(), base.PluginTypeDevice, &ndevice.PluginDevice{}, n.logger)
	if err != nil {
		return nil, err
	}
	config := map[string]any{
		"enabled": true, "mode": "slice", "slice_memory": deviceSliceMemory, "context_memory": contextMemory,
		"uncounted_memory": "charge", "compute_bypass": "observe", "fingerprint_period": "1h",
		"driver_root": n.sim.Root, "state_dir": state, "run_dir": run,
	}
	maps.Copy(config, options)
	p := &devicePlugin{process: process, ledger: ledger}
	if err := p.connect(raw, config); err != nil {
		p.stop()
		return nil, fmt.Errorf("start the plugin %s: %w", n.binary, err)
	}
	return p, nil
}

func (p *devicePlugin) connect(raw any, config map[string]any) error {
	var ok bool
	if p.DevicePlugin, ok = raw.(ndevice.DevicePlugin); !ok {
		return fmt.Errorf("it is no device plugin but a %T", raw)
	}
	protocol, err := p.process.client.Client()
	if err != nil {
		return err
	}
	client, ok := protocol.(*plugin.GRPCClient)
	if !ok {
		return fmt.Errorf("it does not speak gRPC but %T", protocol)
	}
	p.messages = proto.NewDevicePluginClient(client.Conn)
	return configure(p, config, ndevice.ApiVersion010, nil)
}

func (p *devicePlugin) stop() { p.process.client.Kill() }

// cpu is the processor time that the plugin's process has taken so far.
func (p *devicePlugin) cpu() (time.Duration, error) { return cpuTime(p.process.cmd.Process.Pid) }

// cpuOf is the processor time that the plugin's process takes while something is done.
func (p *devicePlugin) cpuOf(do func() error) (time.Duration, error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return after - before, err
}

// deviceCounts says what is measured of the device plugin.
type deviceCounts struct {
	// fingerprints is how many first messages, quiet periods and updates; reserves how many reservations there are for each
	// number of claims and threads; ticks how many messages of statistics.
	fingerprints, reserves, ticks int
}

func (c deviceCounts) check() error {
	if c.fingerprints < 1 || c.reserves < 1 || c.ticks < 1 {
		return fmt.Errorf("-fingerprints %d, -reserves %d and -ticks %d have to be 1 or more", c.fingerprints, c.reserves, c.ticks)
	}
	return nil
}

// device measures the device plugin: its fingerprint, its reservations and its statistics.
func (b *bench) device(ctx context.Context, counts deviceCounts) (_ []result, err error) {
	if err := counts.check(); err != nil {
		return nil, err
	}
	n, err := b.newDeviceNode(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.log.Close()) }()
	var results []result
	for _, measure := range []func(context.Context, deviceCounts) ([]result, error){n.fingerprints, n.reservations, n.statistics} {
		rows, err := measure(ctx, counts)
		if err != nil {
			return nil, fmt.Errorf("%w; the plugin's log is %s", err, n.log.Name())
		}
		results = append(results, rows...)
	}
	return results, nil
}
