package spec

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/tranche-gpu/tranche/driver/network"
)

// sysctlForms says which kernel parameters a task may set.
const sysctlForms = "a task may set what belongs to its own namespaces: net.*, kernel.shm*, kernel.msg*, kernel.sem, " +
	"fs.mqueue.* and kernel.domainname"

// sysctlName keeps out names that lead to another file.
var sysctlName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$`)

// ipcSysctls are the kernel parameters of the IPC namespace, besides fs.mqueue.
var ipcSysctls = []string{"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall",
	"kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"}

// ipcSysctlValue is what the kernel takes for one of them: a number, or for kernel.sem four.
var ipcSysctlValue = regexp.MustCompile(`^-?[0-9]+(\s+[0-9]+)*$`)

// unprivilegedPorts is the first port on which processes without privileges may listen.
const unprivilegedPorts = "net.ipv4.ip_unprivileged_port_start"

// withSysctls sets kernel parameters of the container's own namespaces. In a user namespace of its own, a container owns no
// network but one that was made with it: the group's belongs to the host's root.
func withSysctls(options *TaskConfig, n *network.Network, userns bool) oci.SpecOpts {
	var foreign error
	switch {
	case n.Mode == network.Host:
		foreign = errHostNetwork
	case n.Mode == network.Bridge && userns:
		foreign = errGroupNetwork
	}
	return specOption(func(s *Spec) error {
		asked, all := options.Sysctl.Merged(), map[string]string{}
		if foreign == nil {
			all = defaultSysctls()
		}
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			if foreign != nil && isNetSysctl(name) {
				return sysctlError(name, asked[name], foreign)
			}
			all[name] = asked[name]
		}
		if len(all) > 0 {
			s.Linux.Sysctl = all
		}
		return nil
	})
}

// defaultSysctls let a process without privileges listen on any port where the network is not the host's, as docker and
// Kubernetes do: images rely on it.
func defaultSysctls() map[string]string {
	all := map[string]string{}
	// Older kernels do not have it, and a runtime fails where it is missing.
	if _, err := os.Stat("/proc/sys/" + strings.ReplaceAll(unprivilegedPorts, ".", "/")); err == nil {
		all[unprivilegedPorts] = "0"
	}
	return all
}

var errHostNetwork = errors.New("the task uses the node's network; it needs a network of its own for this, with a network " +
	"block in the group or network_mode = \"none\"")

var errGroupNetwork = errors.New("with userns_mode = \"auto\" the task may change nothing of the group's network, which is not " +
	"its user namespace's; leave one of the two out")

// checkSysctl checks the option sysctl. Whether the task has a network of its own is known later only.
func (c *TaskConfig) checkSysctl() error {
	all := c.Sysctl.Merged()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := c.checkOneSysctl(name, all[name]); err != nil {
			return sysctlError(name, all[name], err)
		}
	}
	return nil
}

func (c *TaskConfig) checkOneSysctl(name, value string) error {
	switch {
	case value == "":
		return errors.New("the value is empty")
	case !sysctlName.MatchString(name):
		return errors.New("this is no name of a kernel parameter, such as \"net.core.somaxconn\"")
	case isNetSysctl(name):
		if c.NetworkMode == network.Host {
			return errHostNetwork
		}
	case isIPCSysctl(name):
		if c.IPCMode == "host" {
			return errors.New("with ipc_mode = \"host\" it would be the node's own")
		}
		if !ipcSysctlValue.MatchString(strings.TrimSpace(value)) {
			return errors.New("the kernel takes only numbers for it")
		}
	case name == "kernel.hostname":
		return errors.New("use the option hostname instead")
	case name == "kernel.domainname":
		if c.UTSMode == "host" {
			return errors.New("with uts_mode = \"host\" it would be the node's own")
		}
	default:
		return errors.New("it is the whole node's, of which runtimes let no container change any")
	}
	return nil
}

func isNetSysctl(name string) bool { return strings.HasPrefix(name, "net.") }

func isIPCSysctl(name string) bool {
	return slices.Contains(ipcSysctls, name) || strings.HasPrefix(name, "fs.mqueue.")
}

func sysctlError(name, value string, err error) error {
	return fmt.Errorf("option sysctl: %q = %q: %w; %s", name, value, err, sysctlForms)
}
