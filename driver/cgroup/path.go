// Package cgroup finds the cgroup of a task, on cgroup v1 and v2, and ends the processes in it. Runtimes create the
// cgroups of containers.
package cgroup

import (
	"path"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/hashicorp/nomad/plugins/drivers"
)

const (
	// Root is where the hierarchies are mounted.
	Root = "/sys/fs/cgroup"
	// CpusetRoot is the hierarchy of cgroup v1 that says on which cores processes run.
	CpusetRoot = Root + "/cpuset"
)

// Unified reports whether the node has cgroup v2 only.
func Unified() bool { return cgroups.Mode() == cgroups.Unified }

// Path returns the cgroup of a task's container, relative to the root of the hierarchies.
//
// Nomad names one in CpusetCgroupPath. On cgroup v2 that is the task's own cgroup, which Nomad has made. On v1 it is the
// shared or reserved part of the cpuset hierarchy, from which only Nomad's parent can be told; a task's cgroup in the
// other hierarchies is PARENT/ALLOC.TASK.
func Path(cfg *drivers.TaskConfig, unified bool) string {
	given := cpusetPath(cfg)
	scope := notInCgroup.Replace(cfg.AllocID + "." + cfg.Name)
	if rel, ok := strings.CutPrefix(given, Root+"/"); ok && unified {
		return path.Clean("/" + rel)
	}
	if rel, ok := strings.CutPrefix(given, CpusetRoot+"/"); ok && !unified {
		parent := path.Dir(path.Clean("/" + rel))
		if strings.HasSuffix(rel, "/"+scope) {
			parent = path.Dir(parent)
		}
		if parent != "/" {
			return path.Join(parent, scope)
		}
	}
	if unified {
		return path.Join("/nomad.slice/share.slice", scope+".scope")
	}
	return path.Join("/nomad", scope)
}

// notInCgroup keeps a task's name from leaving its cgroup's parent.
var notInCgroup = strings.NewReplacer("/", "_", "\x00", "_", "\n", "_")

// cpusetPath returns the directory of the cgroup that Nomad names; "" if it names none.
func cpusetPath(cfg *drivers.TaskConfig) string {
	if r := cfg.Resources; r != nil && r.LinuxResources != nil {
		return r.LinuxResources.CpusetCgroupPath
	}
	return ""
}
