// Package node runs a whole Nomad node of its own for the tests and the demo: containerd, a Nomad agent that is server
// and client in one, Tranche's plugins, and simulated GPUs or the machine's own. Everything it writes lies in one
// directory. It is meant to run inside the sandbox (e2e/sandbox), which removes what a crash would leave behind.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/nomad/api"
)

// Config says what a node is like.
type Config struct {
	// Dir holds everything that the node writes.
	Dir string
	// BuildDir is the repository's build folder.
	BuildDir string
	// InstallFrom is a build folder whose programs and libraries are installed on the node, as an operator installs them.
	// Empty means that the node uses those of BuildDir where they are.
	InstallFrom string
	// NomadBinary is the agent's executable.
	NomadBinary string
	// Topology names the simulator's topology file. Empty means the machine's own GPUs.
	Topology string
	// RunAt is where the regions of the node's claims lie, if not in Dir. Sockets of MPS need a short name.
	RunAt string
	// DataAt is another name of the agent's data directory, `nomad` in Dir: a mount point, which the node's end unmounts. Sockets
	// of CSI plugins need a short name.
	DataAt string
	// MIG has containers find simulated instances by MIG. There is room for one such node in a sandbox, since what the
	// driver's kernel module says in /proc/driver belongs to it.
	MIG bool
	// Unified leaves cgroup version 2 mounted beside version 1. There is no crun then: see HideUnifiedCgroup.
	Unified bool
	// DriverLater starts the node with an empty driver root; AddDriver fills it.
	DriverLater bool
	// DeviceConfig and DriverConfig are further lines for the plugins' configuration, in HCL.
	DeviceConfig string
	DriverConfig string
	// Plugins are further plugins, by the paths of their binaries. PluginBlocks configure them, and drivers that the agent
	// has inside, in HCL.
	Plugins      []string
	PluginBlocks string
	// ContainerdConfig is appended to the configuration of containerd. CRI has it offer the API that a kubelet speaks.
	ContainerdConfig string
	CRI              bool
	// Docker lets the agent use its own docker driver.
	Docker bool
	// Joins is a node whose agent is this one's server, and whose API it uses; nil if it has its own.
	Joins *Node
	// BeforeAgent is called when containerd runs and the agent does not yet.
	BeforeAgent func(context.Context, *Node) error
}

// Node is a running node.
type Node struct {
	Config
	// Sim is nil where the GPUs are real.
	Sim        *Sim
	Containerd *Containerd
	Agent      *Agent

	onStop []func(context.Context) error
}

// OnStop has Stop call a function once the jobs and the agent are gone, while containerd still runs. The last one is called
// first.
func (n *Node) OnStop(f func(context.Context) error) { n.onStop = append(n.onStop, f) }

// StateDir holds the node's ledger.
func (n *Node) StateDir() string { return filepath.Join(n.Dir, "state") }

// RunDir holds the regions of the node's claims.
func (n *Node) RunDir() string { return cmp.Or(n.RunAt, filepath.Join(n.Dir, "run/tranche")) }

func (n *Node) driverRoot() string { return filepath.Join(n.Dir, "driver") }

// Start starts a node and returns when its Nomad client is ready and has its devices and drivers.
func Start(ctx context.Context, c Config) (_ *Node, err error) {
	n := &Node{Config: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Stop(context.WithoutCancel(ctx)))
		}
	}()
	for _, dir := range []string{n.Dir, n.StateDir(), n.RunDir(), filepath.Join(n.Dir, "cni")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a directory for the node: %w", err)
		}
	}
	if c.Topology != "" {
		n.Sim = NewSim(c.BuildDir, n.driverRoot())
		if err := os.MkdirAll(n.Sim.Root, 0o755); err != nil {
			return nil, err
		}
		if !c.DriverLater {
			if err := n.AddDriver(ctx); err != nil {
				return nil, err
			}
		}
		if c.MIG {
			if err := n.mountProc(); err != nil {
				return nil, err
			}
		}
	}
	if err := n.StartContainerd(ctx); err != nil {
		return nil, err
	}
	if c.BeforeAgent != nil {
		if err := c.BeforeAgent(ctx, n); err != nil {
			return nil, err
		}
	}
	if n.Agent, err = n.newAgent(); err != nil {
		return nil, err
	}
	if c.InstallFrom != "" {
		if err := n.Install(ctx, c.InstallFrom); err != nil {
			return nil, err
		}
	}
	if err := n.Agent.Start(ctx); err != nil {
		return nil, err
	}
	if c.DriverLater {
		return n, n.WaitDriver(ctx)
	}
	return n, n.WaitReady(ctx)
}

// AddDriver lays out the simulated driver in the node's driver root.
func (n *Node) AddDriver(ctx context.Context) error { return n.Sim.LayOut(ctx, n.Topology) }

// StartContainerd starts the node's containerd.
func (n *Node) StartContainerd(ctx context.Context) (err error) {
	options := ContainerdOptions{ExtraConfig: n.ContainerdConfig, CRI: n.CRI}
	if n.MIG {
		bin, err := n.Sim.wrapRuntime(n.Dir)
		if err != nil {
			return fmt.Errorf("put a program in front of runc: %w", err)
		}
		options.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	}
	n.Containerd, err = StartContainerd(ctx, filepath.Join(n.Dir, "c"), options)
	return err
}

// DriverRoot is the driver root of the node's GPUs.
func (n *Node) DriverRoot() string {
	if n.Sim != nil {
		return n.Sim.Root
	}
	return "/"
}

func (n *Node) newAgent() (*Agent, error) {
	plugins, err := n.pluginDir()
	if err != nil {
		return nil, err
	}
	settings := &agentSettings{
		Name: filepath.Base(n.Dir), Dir: n.Dir, PluginDir: plugins, CNIPath: "/usr/lib/cni",
		Interface:    "lo",
		DeviceConfig: n.deviceConfig(),
		DriverConfig: n.driverConfig(), Data: cmp.Or(n.DataAt, filepath.Join(n.Dir, "nomad")),
		PluginBlocks: n.PluginBlocks, DeniedDrivers: "exec,java,qemu,exec2",
	}
	if !n.Docker {
		settings.DeniedDrivers += ",docker"
	}
	if n.Joins != nil {
		settings.Server = n.Joins.Agent.rpc
	}
	if err := writeAgentConfig(settings); err != nil {
		return nil, err
	}
	a := &Agent{
		Address: fmt.Sprintf("http://127.0.0.1:%d", settings.HTTP), rpc: fmt.Sprintf("127.0.0.1:%d", settings.RPC), joins: n.Joins != nil,
		binary: n.NomadBinary, dir: n.Dir, log: filepath.Join(n.Dir, "nomad.log"),
	}
	if n.Sim != nil {
		a.env = n.Sim.Env()
	}
	if n.Joins != nil {
		a.API = n.Joins.Agent.API
		return a, nil
	}
	a.API, err = api.NewClient(&api.Config{Address: a.Address})
	return a, err
}

// pluginDir makes a directory that holds links to the plugins and nothing else, since Nomad starts every executable in it.
// Install copies Tranche's there.
func (n *Node) pluginDir() (string, error) {
	dir := filepath.Join(n.Dir, pluginDirName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	var binaries []string
	if n.InstallFrom == "" {
		binaries = []string{n.PluginPath("nomad-device-tranche"), n.PluginPath("nomad-driver-tranche")}
	}
	for _, binary := range append(binaries, n.Plugins...) {
		err := os.Symlink(binary, filepath.Join(dir, filepath.Base(binary)))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
	return dir, nil
}

func (n *Node) deviceConfig() string {
	return setting("driver_root", n.DriverRoot()) + setting("state_dir", n.StateDir()) +
		setting("run_dir", n.RunDir()) + setting("fingerprint_period", "1s") + n.DeviceConfig
}

func (n *Node) driverConfig() string {
	return setting("containerd_address", n.Containerd.Address) + setting("driver_root", n.DriverRoot()) +
		setting("state_dir", n.StateDir()) + setting("run_dir", n.RunDir()) +
		setting("shadow_dir", n.ShadowDir()) + setting("hook_path", n.Program("tranche-hook")) +
		setting("cli_path", n.Program("tranche")) + n.DriverConfig
}

func setting(key, value string) string { return fmt.Sprintf("    %s = %q\n", key, value) }

// Stop ends the node: its jobs' tasks, the agent with its plugins, containerd with its shims.
func (n *Node) Stop(ctx context.Context) error {
	var errs []error
	if n.Agent != nil && n.Agent.ended != nil {
		errs = append(errs, n.stopJobs(ctx))
		n.Agent.Stop()
	}
	errs = append(errs, n.stopGovernor(ctx))
	for _, stop := range slices.Backward(n.onStop) {
		errs = append(errs, stop(ctx))
	}
	if n.Containerd != nil {
		errs = append(errs, n.Containerd.Stop())
	}
	// Nomad leaves the secrets directories of ended allocations mounted until it collects the allocations.
	if n.DataAt != "" {
		errs = append(errs, unmountUnder(n.DataAt))
	}
	return errors.Join(append(errs, unmountUnder(n.Dir))...)
}
