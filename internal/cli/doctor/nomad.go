package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/internal/cli/install"
)

var nomadChecks = []check{
	{"Nomad", "configuration", nomadConfiguration},
	{"Nomad", "plugins", nomadPlugins},
	{"Nomad", "device plugin's options", pluginOptions(nomadPluginNames[0])},
	{"Nomad", "driver's options", pluginOptions(nomadPluginNames[1])},
	{"Nomad", "slice memory", nomadSliceMemory},
	{"Nomad", "other device plugins", nomadOtherDevices},
	{"Nomad", "statistics", nomadStatistics},
	{"Nomad", "containerd", nomadContainerd},
}

const nomadDir = "/etc/nomad.d"

// installPlugins is the command that installs Nomad's plugins and all that installFiles does.
const installPlugins = "tranche install nomad --from BUILD-FOLDER"

var nomadPluginNames = []string{"nomad-device-tranche", "nomad-driver-tranche"}

// nomadConfig reads the agent's configuration; nil where there is no agent, or none that is to use Tranche.
func (n *Node) nomadConfig() (*install.NomadConfig, error) {
	if _, err := os.Stat(n.path(nomadDir)); os.IsNotExist(err) {
		return nil, nil
	}
	return install.ReadNomad(n.path(nomadDir))
}

func nomadConfiguration(_ context.Context, n *Node) finding {
	config, err := n.nomadConfig()
	switch {
	case err != nil:
		return fault(n.path(nomadDir), err.Error(), "correct the file: the agent does not start with it either")
	case config == nil:
		return ok(n.path(nomadDir), "absent")
	case !config.OwnBlocks():
		return ok(config.Dir, "no plugin block for Tranche, so its plugins run with their defaults if they are there")
	}
	return ok(config.Dir, "has Tranche's plugin blocks")
}

// nomadPlugins looks for the two binaries where the agent does, and whether it runs them.
func nomadPlugins(_ context.Context, n *Node) finding {
	config, err := n.nomadConfig()
	if err != nil || config == nil {
		return ok(n.path(nomadDir), "no agent to look at")
	}
	if config.PluginDir == "" {
		return warning(config.Dir, "neither plugin_dir nor data_dir is set", "set plugin_dir in the agent's configuration")
	}
	dir := n.path(config.PluginDir)
	for _, name := range nomadPluginNames {
		err := executable(filepath.Join(dir, name))
		switch {
		case err == nil:
		case os.IsNotExist(err) && !slices.Contains(config.Configured, name):
			return warning(dir, name+" is absent", "for Nomad to use Tranche: "+installPlugins)
		default:
			return fault(dir, fmt.Sprintf("%s: %v", name, err), installPlugins+"; the agent does not start "+
				"with a block for a plugin that is not there")
		}
	}
	old, err := install.OldPlugins(dir)
	switch {
	case err != nil:
		return warning(dir, err.Error(), "run tranche doctor as root")
	case len(old) > 0:
		return warning(dir, "Nomad runs the old "+strings.Join(old, " and ")+", which an upgrade replaced", "systemctl restart nomad; tasks keep running")
	}
	return ok(dir, "has both plugins")
}

// nomadOtherDevices looks for another plugin that offers the same GPUs: the scheduler would give each out twice.
func nomadOtherDevices(_ context.Context, n *Node) finding {
	config, err := n.nomadConfig()
	if err != nil || config == nil {
		return ok(n.path(nomadDir), "no agent to look at")
	}
	file, ignored, both := config.BothDevicePlugins()
	if !both {
		return ok(config.Dir, "no other plugin for these GPUs is to run beside nomad-device-tranche")
	}
	var twice []string
	for _, g := range n.gpus.GPUs {
		if !slices.Contains(ignored, g.UUID) {
			twice = append(twice, g.UUID)
		}
	}
	if len(twice) == 0 && len(n.gpus.GPUs) > 0 {
		return ok(file, "configures nomad-device-nvidia, and each GPU is left to one of the two plugins")
	}
	return fault(file, "configures nomad-device-nvidia beside nomad-device-tranche, so that Nomad counts GPUs twice: "+
		strings.Join(twice, ", "), "set enabled = false in one of the two blocks, or leave each GPU to one of them by "+
		"ignored_gpu_ids; docs/from-nomad-device-nvidia.md is about switching")
}

// nomadStatistics looks whether the agent publishes what the task driver says of tasks.
func nomadStatistics(_ context.Context, n *Node) finding {
	config, err := n.nomadConfig()
	switch {
	case err != nil || config == nil || !config.OwnBlocks():
		return ok(n.path(nomadDir), "no agent to look at")
	case !config.AllocationMetrics:
		return warning(config.Dir, "publish_allocation_metrics is not set, so that Nomad publishes no statistics of tasks",
			"put telemetry { publish_allocation_metrics = true } into the agent's configuration, as tranche install nomad does")
	}
	return ok(config.Dir, "Nomad publishes statistics of tasks")
}

// nomadContainerd asks whether the containerd that the task driver needs listens.
func nomadContainerd(ctx context.Context, n *Node) finding {
	socket := n.path("/run/containerd/containerd.sock")
	config, err := n.nomadConfig()
	if err != nil || config == nil || !slices.Contains(config.Configured, "nomad-driver-tranche") {
		return ok(socket, "no task driver that needs it")
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	connection, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return warning(socket, err.Error(), "the driver waits for containerd: systemctl start containerd; or set "+
			"containerd_address in the driver's plugin block")
	}
	_ = connection.Close()
	return ok(socket, "listens")
}
