package spec

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/storage"
)

// The values of the options about namespaces. Empty means private, but see ownCgroupNamespace.
const (
	namespaceHost    = "host"
	namespacePrivate = "private"
)

// namespaceOption is an option about one kind of namespace.
type namespaceOption struct {
	// option is its name in a jobspec, kind that in the plugin's allow_host_namespaces.
	option, kind string
	value        func(*TaskConfig) string
	with         oci.SpecOpts
}

var namespaceOptions = []namespaceOption{
	{"pid_mode", "pid", func(c *TaskConfig) string { return c.PidMode }, oci.WithHostNamespace(specs.PIDNamespace)},
	{"ipc_mode", "ipc", func(c *TaskConfig) string { return c.IPCMode }, withHostIPC},
	{"uts_mode", "uts", func(c *TaskConfig) string { return c.UTSMode }, withHostUTS},
	{"cgroupns", "cgroup", func(c *TaskConfig) string { return c.CgroupNS }, oci.WithHostNamespace(specs.CgroupNamespace)},
}

// withNamespaces gives the container a namespace of its own of each kind, or the host's where the task requests it.
func withNamespaces(options *TaskConfig, unified bool) oci.SpecOpts {
	var opts []oci.SpecOpts
	if options.ownCgroupNamespace(unified) { // containerd starts from all the others.
		opts = append(opts, oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.CgroupNamespace}))
	}
	for _, n := range namespaceOptions {
		if n.value(options) == namespaceHost {
			opts = append(opts, n.with)
		}
	}
	return oci.Compose(opts...)
}

// ownCgroupNamespace reports whether the container sees its own cgroups as the roots. By default it does on cgroup v2 and
// not on v1, as under docker: programs made for v1 look for their container's ID in the names.
func (c *TaskConfig) ownCgroupNamespace(unified bool) bool {
	return c.CgroupNS == namespacePrivate || c.CgroupNS == "" && unified
}

// withHostIPC shares the host's System V objects and message queues, and its POSIX shared memory, which is a directory.
var withHostIPC = oci.Compose(
	oci.WithHostNamespace(specs.IPCNamespace),
	oci.WithoutMounts("/dev/shm", "/dev/mqueue"),
	oci.WithMounts([]specs.Mount{
		storage.Bind("/dev/shm", "/dev/shm", "rprivate", false),
		{Type: "mqueue", Source: "mqueue", Destination: "/dev/mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
	}),
)

// withHostUTS shares the host's name. A hostname in the spec would be one for the host, which the runtime refuses.
var withHostUTS = oci.Compose(oci.WithHostNamespace(specs.UTSNamespace), oci.WithHostname(""))

// checkNamespaces checks the options about namespaces, and what goes with which.
func (c *TaskConfig) checkNamespaces(plugin *Config) error {
	var errs []error
	for _, n := range namespaceOptions {
		switch value := n.value(c); value {
		case "", namespacePrivate:
		case namespaceHost:
			if !slices.Contains(plugin.AllowHostNamespaces, n.kind) {
				errs = append(errs, fmt.Errorf("option %s = %q: this node allows \"private\" only; the operator can allow it "+
					"with %q in the plugin's allow_host_namespaces", n.option, value, n.kind))
			}
		default:
			errs = append(errs, fmt.Errorf("option %s = %q: must be \"private\", which is the default, or \"host\"",
				n.option, value))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) checkAllowHostNamespaces() error {
	var known []string
	for _, n := range namespaceOptions {
		known = append(known, n.kind)
	}
	for _, kind := range c.AllowHostNamespaces {
		if !slices.Contains(known, kind) {
			return fmt.Errorf("plugin option allow_host_namespaces = %q: unknown namespace %q; the namespaces are %q",
				c.AllowHostNamespaces, kind, known)
		}
	}
	return nil
}

// maxHostname is the kernel's bound on a host name.
const maxHostname = 64

// hostnameForm is a name after RFC 1123: labels of letters, digits and hyphens, with dots between.
var hostnameForm = regexp.MustCompile(
	`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)

// checkHostname checks the option hostname. A task in the host's network may have one: its name is its own all the same.
func (c *TaskConfig) checkHostname() error {
	switch {
	case c.Hostname == "":
		return nil
	case len(c.Hostname) > maxHostname || !hostnameForm.MatchString(c.Hostname):
		return fmt.Errorf("option hostname = %q: must be a name after RFC 1123: up to %d letters, digits, hyphens and dots, "+
			"such as \"web-1\"", c.Hostname, maxHostname)
	case c.UTSMode == namespaceHost:
		return fmt.Errorf("option hostname = %q: with uts_mode = \"host\" the task has the node's name; leave one of the two "+
			"out", c.Hostname)
	}
	return nil
}
