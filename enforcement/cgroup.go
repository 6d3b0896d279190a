package enforcement

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// errNoCgroup2 is the error where cgroup v2 is not mounted.
var errNoCgroup2 = errors.New("cgroup v2 is not mounted on this node, and the driver limits cgroups of that version alone")

// unifiedID is the ID of cgroup v2's hierarchy in /proc/PID/cgroup.
const unifiedID = 0

// hierarchy is where cgroup v2 is mounted: the directory, and which cgroup that is, as /proc/PID/cgroup names it.
type hierarchy struct{ dir, root string }

// mounted finds cgroup v2.
func mounted() (hierarchy, error) {
	found, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return hierarchy{}, fmt.Errorf("find where cgroup v2 is mounted: %w", err)
	}
	for _, m := range found {
		if !strings.HasPrefix(m.Root, "/..") { // else it is of another cgroup namespace
			return hierarchy{m.Mountpoint, m.Root}, nil
		}
	}
	return hierarchy{}, errNoCgroup2
}

// of returns the directory of a process's cgroup.
func (h hierarchy) of(pid int) (string, error) {
	cgroups, err := proc.Cgroups(pid)
	if err != nil {
		return "", fmt.Errorf("find the cgroup of process %d: %w", pid, err)
	}
	path, ok := cgroups[unifiedID]
	if !ok {
		return "", errNoCgroup2
	}
	below, err := filepath.Rel(h.root, path)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		return "", fmt.Errorf("find the cgroup of process %d: %s is not below %s, which is mounted at %s; run Tranche in the host's "+
			"cgroup namespace", pid, path, h.root, h.dir)
	}
	return filepath.Join(h.dir, below), nil
}

// Cgroup returns the directory of a process's cgroup v2.
func Cgroup(pid int) (string, error) {
	h, err := mounted()
	if err != nil {
		return "", err
	}
	return h.below(pid)
}

// below returns the directory of a process's cgroup, which must not be the topmost: the driver limits all but the root.
func (h hierarchy) below(pid int) (string, error) {
	dir, err := h.of(pid)
	if err == nil && dir == h.dir {
		err = fmt.Errorf("process %d has no cgroup v2 of its own: it is in %s", pid, dir)
	}
	return dir, err
}

// own returns an error unless a process is the only one in its cgroup: a limit would hold for the others, too.
func own(dir string, pid int) error {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return fmt.Errorf("list the processes of a container's cgroup: %w", err)
	}
	for _, other := range strings.Fields(string(content)) {
		if other != strconv.Itoa(pid) {
			return fmt.Errorf("the container has no cgroup v2 of its own: process %s is in %s, too, and a limit would hold for it; give "+
				"the container one, or request enforcement = \"library\"", other, dir)
		}
	}
	return nil
}

// temporary makes a cgroup without processes below the root, which the caller removes, and removes those of processes that were
// killed before they could.
func temporary() (string, error) {
	const prefix = "tranche-probe-"
	h, err := mounted()
	if err != nil {
		return "", err
	}
	left, _ := filepath.Glob(filepath.Join(h.dir, prefix+"*")) // the pattern is a good one
	for _, dir := range left {
		if pid := strings.TrimPrefix(filepath.Base(dir), prefix); unix.Access("/proc/"+pid, unix.F_OK) != nil {
			_ = os.Remove(dir)
		}
	}
	dir := filepath.Join(h.dir, prefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("make a cgroup to try the driver's limits: %w", err)
	}
	return dir, nil
}

// controllers are those by which the driver finds the cgroup of a process (os_cgroup_for_pid in kernel-open/nvidia/os-interface.c of
// NVIDIA's open kernel modules, 615): dmem where the kernel has it, else misc. The kernel then answers with the nearest ancestor for
// which that one is enabled. So a limit of a cgroup below is stored and read back, and never holds.
var controllers = []string{"dmem", "misc"}

// enable enables these controllers, where the kernel has them, for a cgroup.
func enable(dir string) error {
	h, err := mounted()
	if err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(h.dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("list the kernel's cgroup controllers: %w", err)
	}
	for _, controller := range controllers {
		if !slices.Contains(strings.Fields(string(content)), controller) || enabled(dir, controller) {
			continue
		}
		if err := enableFrom(h.dir, dir, controller); err != nil {
			return err
		}
	}
	return nil
}

// enableFrom enables a controller for a cgroup in all of its ancestors, from the root on.
func enableFrom(root, dir, controller string) error {
	at := root
	for name := range strings.SplitSeq(strings.TrimPrefix(dir, root+"/"), "/") {
		err := os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("%w: it has processes of its own", err)
		}
		if err != nil {
			return fmt.Errorf("enable the controller %s below the cgroup %s, without which the driver's limits do not hold: %w", controller,
				at, err)
		}
		at = filepath.Join(at, name)
	}
	if !enabled(dir, controller) {
		return fmt.Errorf("the controller %s, without which the driver's limits do not hold, is not enabled for the cgroup %s",
			controller, dir)
	}
	return nil
}

// enabled reports whether a controller is enabled for a cgroup, which then has its files.
func enabled(dir, controller string) bool {
	_, err := os.Lstat(filepath.Join(dir, controller+".current"))
	return err == nil
}
