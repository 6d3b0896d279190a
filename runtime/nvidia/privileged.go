package nvidia

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// allowsEveryDevice reports whether a container may open every device of the node. Engines give a privileged container all
// nodes of the host's /dev and one rule that allows all. It is root on the host and can create any node itself, so the
// engine decides who may start one. Of the device cgroup's rules, later ones override earlier ones.
func allowsEveryDevice(spec *specs.Spec) bool {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return false
	}
	every := false
	for _, rule := range spec.Linux.Resources.Devices {
		switch {
		case !rule.Allow:
			every = false
		case isEveryDevice(rule):
			every = true
		}
	}
	return every
}

func isEveryDevice(rule specs.LinuxDeviceCgroup) bool {
	return (rule.Type == "" || rule.Type == "a") && rule.Major == nil && rule.Minor == nil &&
		strings.Contains(rule.Access, "r") && strings.Contains(rule.Access, "w")
}
