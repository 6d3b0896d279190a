// Package network connects a task: it selects the container's network namespace and host name, and writes its
// /etc/hosts and /etc/resolv.conf. It makes no networks: Nomad does.
package network

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/storage"
)

// The values of the option network_mode. Empty means the group's network where there is one, else the host's.
const (
	Host   = "host"
	Bridge = "bridge"
	None   = "none"
)

// Options are a task's options about its network.
type Options struct {
	// Mode is Host, Bridge, None or empty.
	Mode string
	// Hostname is the name that the container sees for itself; empty means that of its network.
	Hostname string
	// ExtraHosts are lines for /etc/hosts, as "NAME:ADDRESS".
	ExtraHosts []string
	// Readonly keeps the task from writing to its /etc/hosts and /etc/resolv.conf, as to all else of its root file system.
	Readonly bool
	// DNSServers, DNSSearchDomains and DNSOptions are used instead of the group's dns block.
	DNSServers, DNSSearchDomains, DNSOptions []string
}

// Check checks the options, except the host name. Every error names the option.
func (o *Options) Check() error {
	_, err := o.extraHosts()
	errs := []error{err}
	switch o.Mode {
	case "", Host, Bridge, None:
	default:
		errs = append(errs, fmt.Errorf("option network_mode = %q: must be %q, %q or %q", o.Mode, Host, Bridge, None))
	}
	return errors.Join(append(errs, o.checkDNS()...)...)
}

// Network is how a task is connected. Make one with New.
type Network struct {
	cfg     *drivers.TaskConfig
	options *Options
	// Mode is Host, Bridge (the group's namespace) or None.
	Mode string
	// Owner is the host's ID of the container's root, who may write to the task's files.
	Owner int
	// path is the group's network namespace.
	path string
	// hostname is the name that the task sees for itself.
	hostname string
	// files are mounts over /etc/hosts and /etc/resolv.conf.
	files []specs.Mount
}

// New returns how the task is connected. It writes nothing.
func New(cfg *drivers.TaskConfig, options *Options) (*Network, error) {
	group, mode := cfg.NetworkIsolation, options.Mode
	hasGroup := group != nil && group.Mode == drivers.NetIsolationModeGroup && group.Path != ""
	n := &Network{cfg: cfg, options: options, Mode: mode}
	switch {
	case mode == "" && hasGroup:
		n.Mode = Bridge
	case mode == "" && group != nil && group.Mode == drivers.NetIsolationModeNone:
		n.Mode = None
	case mode == "":
		n.Mode = Host
	case mode == Bridge && !hasGroup:
		return nil, fmt.Errorf("option network_mode = \"bridge\": the group has no network namespace; add " +
			"network { mode = \"bridge\" } to the group")
	}
	if err := n.name(cfg); err != nil {
		return nil, err
	}
	if options.Hostname != "" {
		n.hostname = options.Hostname
	}
	return n, nil
}

func (n *Network) name(cfg *drivers.TaskConfig) (err error) {
	switch n.Mode {
	case Host:
		n.hostname, err = os.Hostname()
		return err
	case Bridge:
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

// WriteFiles writes /etc/resolv.conf and /etc/hosts to the task's directory, as Nomad does for its other drivers. A task
// without network keeps the image's resolv.conf: it can query no name server.
func (n *Network) WriteFiles() error {
	if n.Mode != None {
		dns, err := writeResolvConf(n.cfg.TaskDir().Dir, n.options.dns(n.cfg.DNS), n.Mode == Host, n.Owner)
		if err != nil {
			return fmt.Errorf("write the task's resolv.conf: %w", err)
		}
		n.files = append(n.files, storage.Bind(dns, "/etc/resolv.conf", storage.Private, n.options.Readonly))
	}
	extra, err := n.options.extraHosts()
	if err != nil {
		return err
	}
	hosts, err := n.hostsMount(n.cfg, extra)
	if err != nil {
		return fmt.Errorf("write the task's hosts file: %w", err)
	}
	n.files = append(n.files, *hosts)
	return nil
}

// WithNamespace puts the container into its network namespace: the host's, the group's, or one with nothing but a
// loopback interface, which is what an OCI spec means that asks for a namespace without a path.
func (n *Network) WithNamespace() oci.SpecOpts {
	switch n.Mode {
	case Host:
		return oci.WithHostNamespace(specs.NetworkNamespace)
	case Bridge:
		return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: n.path})
	default:
		return oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
}

// WithHostname names the container, to itself and in its environment as shells expect it.
func (n *Network) WithHostname() oci.SpecOpts { return oci.WithHostname(n.hostname) }

// WithFiles mounts the network's files.
func (n *Network) WithFiles() oci.SpecOpts { return oci.WithMounts(n.files) }
