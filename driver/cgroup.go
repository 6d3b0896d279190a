package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/oci"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// withCgroup places the container where Nomad places tasks, so that its own accounting sees it.
func withCgroup(cfg *drivers.TaskConfig) oci.SpecOpts {
	return oci.WithCgroup(cgroupPath(cfg, unifiedCgroups()))
}

func unifiedCgroups() bool { return cgroups.Mode() == cgroups.Unified }

// cgroupPath is the container's cgroup, relative to the root of the hierarchies.
//
// Nomad names one in CpusetCgroupPath. On cgroup v2 that is the task's own cgroup, which it has made. On v1 it is the
// shared or reserved part of the cpuset hierarchy, from which only Nomad's parent can be told; a task's cgroup in the
// other hierarchies is PARENT/ALLOC.TASK.
func cgroupPath(cfg *drivers.TaskConfig, unified bool) string {
	given := cpusetCgroupPath(cfg)
	scope := notInCgroup.Replace(cfg.AllocID + "." + cfg.Name)
	if rel, ok := strings.CutPrefix(given, cgroupRoot+"/"); ok && unified {
		return path.Clean("/" + rel)
	}
	if rel, ok := strings.CutPrefix(given, cpusetRoot+"/"); ok && !unified {
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

func cpusetCgroupPath(cfg *drivers.TaskConfig) string {
	if r := cfg.Resources; r != nil && r.LinuxResources != nil {
		return r.LinuxResources.CpusetCgroupPath
	}
	return ""
}

// notInCgroup keeps a task's name from leaving its cgroup's parent.
var notInCgroup = strings.NewReplacer("/", "_", "\x00", "_", "\n", "_")

// withCgroupMount lets programs read their limits, as language runtimes do to size themselves.
var withCgroupMount = oci.WithMounts([]specs.Mount{{
	Destination: cgroupRoot,
	Type:        "cgroup",
	Source:      "cgroup",
	Options:     []string{"ro", "nosuid", "noexec", "nodev"},
}})

// cpusetRoot is the hierarchy of cgroup v1 that says which cores processes run on.
const cpusetRoot = cgroupRoot + "/cpuset"

// joinCpuset puts a process of the task, and so its children, into the cpuset that Nomad has for it.
//
// On cgroup v1 Nomad's cpusets are a tree of their own: a task that reserved cores has one, and all others share one whose
// cores change as such tasks come and go. A spec names one path for all hierarchies, at which the runtime makes another
// cpuset with all the cores there are; a task left there would run on cores that others have reserved. On cgroup v2 the
// container's cgroup lies beneath the right one.
func joinCpuset(cfg *drivers.TaskConfig, pid uint32) error {
	dir := path.Clean(cpusetCgroupPath(cfg))
	if unifiedCgroups() || !strings.HasPrefix(dir, cpusetRoot+"/") {
		return nil
	}
	if cores := cfg.Resources.LinuxResources.CpusetCpus; cores != "" {
		// Nomad makes the cgroup and leaves it to the driver to say which cores.
		if err := writeCgroup(dir, "cpuset.cpus", cores); err != nil {
			return err
		}
	}
	return writeCgroup(dir, "cgroup.procs", strconv.FormatUint(uint64(pid), 10))
}

// writeCgroup writes a value. A cgroup that is not there belongs to an agent that makes none.
func writeCgroup(dir, name, value string) error {
	err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOSPC):
		return nstructs.NewRecoverableError(fmt.Errorf("put the task into Nomad's cpuset: %w: no core is left that other tasks "+
			"have not reserved", err), true)
	}
	return fmt.Errorf("put the task into Nomad's cpuset: %w", err)
}
