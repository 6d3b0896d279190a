package driver

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/storage"
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
func newNetwork(cfg *drivers.TaskConfig, options *TaskConfig) (*network, error) {
	group, mode := cfg.NetworkIsolation, options.NetworkMode
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
	if options.Hostname != "" {
		n.hostname = options.Hostname
	}
	return n, n.writeFiles(cfg, options)
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

// writeFiles lays out /etc/resolv.conf and /etc/hosts as Nomad does for its other drivers. A task without network keeps
// the image's resolv.conf: there is nobody to ask.
func (n *network) writeFiles(cfg *drivers.TaskConfig, options *TaskConfig) error {
	if n.mode != networkNone {
		dns, err := writeResolvConf(cfg.TaskDir().Dir, options.dns(cfg.DNS), n.mode == networkHost)
		if err != nil {
			return fmt.Errorf("write the task's resolv.conf: %w", err)
		}
		n.files = append(n.files, storage.Bind(dns, "/etc/resolv.conf", "rprivate", true))
	}
	extra, err := options.extraHosts()
	if err != nil {
		return err
	}
	hosts, err := n.hostsMount(cfg, extra)
	if err != nil {
		return fmt.Errorf("write the task's hosts file: %w", err)
	}
	n.files = append(n.files, *hosts)
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
	_, err := c.extraHosts()
	errs := []error{err}
	switch c.NetworkMode {
	case "", networkHost, networkBridge, networkNone:
	default:
		errs = append(errs, fmt.Errorf("option network_mode = %q: must be %q, %q or %q",
			c.NetworkMode, networkHost, networkBridge, networkNone))
	}
	return errors.Join(append(errs, c.checkDNS()...)...)
}
