package spec

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// unconfined is what security_opt calls the absence of a profile.
const unconfined = "unconfined"

// securityOptions is the option security_opt, parsed.
type securityOptions struct {
	// noNewPrivileges keeps programs from gaining rights by setuid and file capabilities.
	noNewPrivileges bool
	// seccomp is "builtin", "unconfined", the name of a profile in seccomp_dir or a path in the task's directories;
	// empty means the node's default.
	seccomp string
	// apparmor is the name of a profile or "unconfined"; empty means the node's default.
	apparmor string
	label    selinuxLabel
	// systemPaths is "unconfined" for a task that may see the masked parts of /proc and /sys.
	systemPaths string
}

// securityKinds are what security_opt knows, for messages.
const securityKinds = `"no-new-privileges", "seccomp=PROFILE", "apparmor=PROFILE", "label=disable", ` +
	`"label=user:USER", "label=role:ROLE", "label=type:TYPE", "label=level:LEVEL" and "systempaths=unconfined"`

// parseSecurityOptions parses the option security_opt, whose syntax is docker's. It refuses two values of one kind: the job's
// author meant only one of two profiles.
func parseSecurityOptions(given []string) (securityOptions, error) {
	var o securityOptions
	seen := map[string]bool{}
	for _, entry := range given {
		kind, err := o.set(entry)
		if err == nil && seen[kind] {
			err = fmt.Errorf("%s is set twice", kind)
		}
		if err != nil {
			return securityOptions{}, fmt.Errorf("option security_opt = %q: %w; there are %s", entry, err, securityKinds)
		}
		seen[kind] = true
	}
	if o.label.disable && o.label.given() {
		return securityOptions{}, fmt.Errorf("option security_opt = %q: label=disable and another label contradict each "+
			"other; leave one out", given)
	}
	return o, nil
}

// set parses one entry, and returns the kind of what it sets. Docker separates by "=" and, as it did long ago, by ":".
func (o *securityOptions) set(entry string) (kind string, err error) {
	kind, value := entry, ""
	if at := strings.IndexAny(entry, "=:"); at >= 0 {
		kind, value = entry[:at], entry[at+1:]
	}
	switch kind {
	case "no-new-privileges":
		return kind, o.setNoNewPrivileges(entry, value)
	case "seccomp":
		o.seccomp = value
	case "apparmor":
		o.apparmor = value
	case "systempaths":
		if value != unconfined {
			return kind, errors.New("systempaths may be \"unconfined\" only")
		}
		o.systemPaths = value
	case "label":
		part, err := o.label.set(value)
		return "label=" + part, err
	default:
		return kind, errors.New("unknown option")
	}
	if value == "" {
		return kind, fmt.Errorf("%s has no value", kind)
	}
	return kind, nil
}

func (o *securityOptions) setNoNewPrivileges(entry, value string) error {
	switch {
	case entry == "no-new-privileges", value == "true":
		o.noNewPrivileges = true
	case value != "false":
		return errors.New("no-new-privileges may be \"true\" or \"false\"")
	}
	return nil
}

// security is security_opt, which Check has checked.
func (c *TaskConfig) security() securityOptions {
	o, _ := parseSecurityOptions(c.SecurityOpt)
	return o
}

// withPrivileged takes from a privileged task's container all that separates it from the host but its namespaces: it
// has every capability that the plugin has, every device of the host, and /proc and /sys as they are. What security_opt
// sets comes after it, and holds.
//
// The host's devices include those of its GPUs, so that a privileged task can use a GPU beyond its claim if it sets out
// to; an operator who allows privileged tasks trusts them with the whole node. The GPU stays the last option all the
// same: a program that does as usual gets the claim's GPU, by way of the shadow library.
func withPrivileged(options *TaskConfig) oci.SpecOpts {
	if !options.Privileged {
		return unchanged
	}
	return oci.Compose(oci.WithPrivileged, oci.WithHostDevices, oci.WithAllDevicesAllowed)
}

// checkPrivileged checks the option privileged.
func (c *TaskConfig) checkPrivileged(plugin *Config) error {
	if c.Privileged && !plugin.AllowPrivileged {
		return errors.New("option privileged = true: this node allows no privileged tasks, only false; the operator can " +
			"allow them with the plugin's allow_privileged")
	}
	return nil
}

// withNoNewPrivileges sets whether programs may gain rights that the process has not. By default they may, as under
// docker: sudo and ping of many images need it.
func withNoNewPrivileges(options *TaskConfig) oci.SpecOpts {
	if options.security().noNewPrivileges {
		return oci.WithNoNewPrivileges
	}
	return oci.WithNewPrivileges
}

// withSystemPaths shows the container the parts of /proc and /sys that are masked or read-only otherwise, where the
// task requests them.
func withSystemPaths(options *TaskConfig) oci.SpecOpts {
	if options.security().systemPaths != unconfined {
		return unchanged
	}
	return oci.Compose(oci.WithMaskedPaths(nil), oci.WithReadonlyPaths(nil))
}

// unchanged is an option that does nothing, for what a task does not ask for.
func unchanged(context.Context, oci.Client, *containers.Container, *Spec) error { return nil }

// checkSecurity checks the options that widen or narrow what separates the container from the host.
func (c *TaskConfig) checkSecurity(plugin *Config) error {
	return errors.Join(
		c.checkPrivileged(plugin),
		c.checkCapabilities(plugin),
		c.checkSecurityOpt(plugin),
		c.checkNamespaces(plugin),
		c.checkDevices(plugin),
		c.checkUserns(plugin),
	)
}

// checkSecurityOpt checks the option security_opt. What takes protection away is for tasks that might as well be
// privileged, with one switch of the operator's for both.
func (c *TaskConfig) checkSecurityOpt(plugin *Config) error {
	o, err := parseSecurityOptions(c.SecurityOpt)
	if err != nil {
		return err
	}
	return errors.Join(o.checkUnconfined(plugin), o.checkSeccomp(plugin), o.checkAppArmor(hostAppArmor),
		o.label.check(hasSELinux()))
}

func (o *securityOptions) checkUnconfined(plugin *Config) error {
	var errs []error
	for kind, value := range map[string]string{
		"seccomp": o.seccomp, "apparmor": o.apparmor, "systempaths": o.systemPaths,
	} {
		if value == unconfined && !plugin.AllowPrivileged {
			errs = append(errs, fmt.Errorf("option security_opt = %q: it takes away what protects the host, and this node "+
				"allows no privileged tasks; the operator can allow it with the plugin's allow_privileged", kind+"="+value))
		}
	}
	return errors.Join(errs...)
}

// checkSecurity checks what the plugin's options about security say.
func (c *Config) checkSecurity() error {
	return errors.Join(
		c.checkAllowCaps(),
		c.checkAllowDevices(),
		c.checkAllowHostNamespaces(),
		c.checkSeccompProfile(),
		c.checkUsernsRange(),
	)
}
