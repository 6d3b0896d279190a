package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/recoverable"
)

// JoinCpuset puts a process of the task, and so its children, into the cpuset that Nomad has for it.
//
// On cgroup v1 Nomad's cpusets are a tree of their own: a task that reserved cores has one, and all others share one whose
// cores change as such tasks come and go. A spec names one path for all hierarchies, at which the runtime makes another
// cpuset with all the cores there are; a task left there would run on cores that others have reserved. On cgroup v2 the
// container's cgroup lies beneath the right one.
func JoinCpuset(cfg *drivers.TaskConfig, pid uint32) error {
	dir := path.Clean(cpusetPath(cfg))
	if Unified() || !strings.HasPrefix(dir, CpusetRoot+"/") {
		return nil
	}
	if cores := cfg.Resources.LinuxResources.CpusetCpus; cores != "" {
		// Nomad makes the cgroup and leaves it to the driver to set the cores.
		if err := write(dir, "cpuset.cpus", cores); err != nil {
			return err
		}
	}
	return write(dir, "cgroup.procs", strconv.FormatUint(uint64(pid), 10))
}

// write writes a value to a file of a cpuset. A cgroup that is not there belongs to an agent that makes none.
func write(dir, name, value string) error {
	err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOSPC):
		return recoverable.Error(fmt.Errorf("put the task into Nomad's cpuset: %w: no core is left that other tasks "+
			"have not reserved", err))
	}
	return fmt.Errorf("put the task into Nomad's cpuset: %w", err)
}
