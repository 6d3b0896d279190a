package driver

import (
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/drivers/shared/hostnames"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// What network_mode may be; empty means the group's network where there is one, else the host's.
const (
	networkHost   = "host"
	networkBridge = "bridge"
	networkNone   = "none"
)

// network is how a task is connected.
type network struct {
	// mode is one of networkHost, networkBridge (the group's namespace) and networkNone.
	mode string
	// path is the group's network namespace.
	path string
	// hostname is the name that the task sees for itself.
	hostname string
	// files are mounts over /etc/hosts and /etc/resolv.conf.
	files []specs.Mount
}

// newNetwork works out how the task is connected, and writes the files that say so to the task's directory.
func newNetwork(cfg *drivers.TaskConfig, mode string) (*network, error) {
	group := cfg.NetworkIsolation
	hasGroup := group != nil && group.Mode == drivers.NetIsolationModeGroup && group.Path != ""
	n := &network{mode: mode}
	switch {
	case mode == "" && hasGroup:
		n.mode = networkBridge
	case mode == "" && group != nil && group.Mode == drivers.NetIsolationModeNone:
		n.mode = networkNone
	case mode == "":
		n.mode = networkHost
	case mode == networkBridge && !hasGroup:
		return nil, fmt.Errorf("option network_mode = \"bridge\": the group has no network namespace; add " +
			"network { mode = \"bridge\" } to the group")
	}
	if err := n.name(cfg); err != nil {
		return nil, err
	}
	return n, n.writeFiles(cfg)
}

func (n *network) name(cfg *drivers.TaskConfig) (err error) {
	switch n.mode {
	case networkHost:
		n.hostname, err = os.Hostname()
		return err
	case networkBridge:
		n.path = cfg.NetworkIsolation.Path
		if hosts := cfg.NetworkIsolation.HostsConfig; hosts != nil && hosts.Hostname != "" {
			n.hostname = hosts.Hostname
			return nil
		}
	}
	n.hostname = cfg.AllocID
	if len(n.hostname) > 12 {
		n.hostname = n.hostname[:12]
	}
	return nil
}

// writeFiles lays out /etc/resolv.conf and /etc/hosts as Nomad does for its other drivers. A task without network
// keeps the image's.
func (n *network) writeFiles(cfg *drivers.TaskConfig) error {
	if n.mode == networkNone {
		return nil
	}
	dns, err := writeResolvConf(cfg.TaskDir().Dir, cfg.DNS, n.mode == networkHost)
	if err != nil {
		return fmt.Errorf("write the task's resolv.conf: %w", err)
	}
	n.files = append(n.files, bind(dns, "/etc/resolv.conf", "rprivate", true))
	if n.mode == networkHost {
		n.files = append(n.files, bind("/etc/hosts", "/etc/hosts", "rprivate", true))
		return nil
	}
	hosts, err := hostnames.GenerateEtcHostsMount(cfg.AllocDir, cfg.NetworkIsolation, nil)
	if err != nil {
		return fmt.Errorf("write the group's hosts file: %w", err)
	}
	if hosts != nil {
		n.files = append(n.files, bind(hosts.HostPath, hosts.TaskPath, "rprivate", hosts.Readonly))
	}
	return nil
}

// withNetwork puts the container into its network namespace: the host's, the group's, or one with nothing but a
// loopback interface, which is what an OCI spec means that asks for a namespace without a path.
func withNetwork(n *network) oci.SpecOpts {
	switch n.mode {
	case networkHost:
		return oci.WithHostNamespace(specs.NetworkNamespace)
	case networkBridge:
		return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: n.path})
	default:
		return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
}

// withHostname names the container, to itself and in its environment as shells expect it.
func withHostname(n *network) oci.SpecOpts { return oci.WithHostname(n.hostname) }

// withNetworkFiles mounts the network's files.
func withNetworkFiles(n *network) oci.SpecOpts { return oci.WithMounts(n.files) }

// checkNetwork checks the options about the network.
func (c *TaskConfig) checkNetwork(*Config) error {
	switch c.NetworkMode {
	case "", networkHost, networkBridge, networkNone:
		return nil
	default:
		return fmt.Errorf("option network_mode = %q: must be %q, %q or %q",
			c.NetworkMode, networkHost, networkBridge, networkNone)
	}
}
