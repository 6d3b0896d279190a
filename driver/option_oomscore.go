package driver

import (
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// maxOOMScoreAdj is the kernel's bound. Values below zero would let a task survive at the cost of others, and of the node.
const maxOOMScoreAdj = 1000

// withOOMScoreAdj says how soon the kernel ends the task's processes when the node's memory is short: the task's value,
// else the plugin's. It is always set: containerd is usually protected, and its children would be so as well.
func withOOMScoreAdj(options *TaskConfig, plugin *Config) oci.SpecOpts {
	adj := int(options.OOMScoreAdj)
	if adj == 0 {
		adj = int(plugin.OOMScoreAdj)
	}
	return specOption(func(s *Spec) error {
		s.Process.OOMScoreAdj = &adj
		return nil
	})
}

// checkOOMScoreAdj checks the option of a task, or of the plugin.
func checkOOMScoreAdj(option string, value int64) error {
	if value < 0 || value > maxOOMScoreAdj {
		return fmt.Errorf("%s = %d: must be from 0 to %d, at which it is ended first", option, value, maxOOMScoreAdj)
	}
	return nil
}
