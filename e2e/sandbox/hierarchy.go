package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup hierarchy: one of version 1's, or the one of version 2.
type hierarchy struct {
	mount   string
	v2      bool
	options []string // of version 1: the controllers, or name=…
	path    string   // of this process's cgroup in it
}

// hierarchies lists the cgroup hierarchies that are mounted here (cgroups(7), proc_pid_mountinfo(5)).
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 || !strings.HasPrefix(kind[0], "cgroup") {
			continue
		}
		h := hierarchy{mount: fields[4], v2: kind[0] == "cgroup2"}
		for _, option := range strings.Split(kind[2], ",") {
			if !slices.Contains([]string{"rw", "ro", "xattr", "clone_children"}, option) {
				h.options = append(h.options, option)
			}
		}
		if h.path = h.find(string(own)); h.path != "" {
			all = append(all, h)
		}
	}
	return all, nil
}

// find returns this hierarchy's path from the lines of /proc/self/cgroup ("1:cpu,cpuacct:/path").
func (h hierarchy) find(lines string) string {
	for line := range strings.Lines(lines) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if h.v2 && parts[0] == "0" || !h.v2 && slices.Contains(h.options, strings.Split(parts[1], ",")[0]) {
			return parts[2]
		}
	}
	return ""
}

// parent is the cgroup below which the sandbox makes its own. In version 1 that is the one which this process is in, so
// that limits on it hold for the sandbox too; in version 2 a cgroup with processes cannot hand out controllers
// to others below it, so it is the root.
func (h hierarchy) parent() string {
	if h.v2 {
		return h.mount
	}
	return filepath.Join(h.mount, h.path)
}

// enterCgroups makes a cgroup of the name in every hierarchy and moves this process there, so that a child in a cgroup
// namespace of its own takes them for the roots. leave moves this process back; remove removes the cgroups.
func enterCgroups(name string) (leave, remove func() error, err error) {
	all, err := hierarchies()
	if err != nil {
		return nil, nil, fmt.Errorf("list the cgroup hierarchies: %w", err)
	}
	remove = func() error {
		var errs []error
		for _, h := range all {
			errs = append(errs, removeCgroupTree(filepath.Join(h.parent(), name)))
		}
		return errors.Join(errs...)
	}
	leave = func() error {
		var errs []error
		for _, h := range all {
			errs = append(errs, join(filepath.Join(h.mount, h.path)))
		}
		return errors.Join(errs...)
	}
	for _, h := range all {
		dir := filepath.Join(h.parent(), name)
		err = errors.Join(h.prepare(dir), join(dir))
		if err != nil {
			return nil, nil, errors.Join(err, leave(), remove())
		}
	}
	return leave, remove, nil
}

// prepare makes the cgroup fit to hold processes and to have controllers.
func (h hierarchy) prepare(dir string) error {
	if h.v2 {
		handDownControllers(h.mount)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	// A new cgroup of version 1's cpuset has no processors and no memory nodes, and takes no process (cpuset(7)).
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(h.parent(), file))
		if errors.Is(err, fs.ErrNotExist) || h.v2 {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// handDownControllers gives the children of a cgroup of version 2 every controller that it has. Some may be refused,
// and then the children have the others.
func handDownControllers(dir string) {
	controllers, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, controller := range strings.Fields(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
	}
}

// join moves this process into a cgroup.
func join(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644)
}

// remountCgroups, in the sandbox's cgroup namespace, mounts every hierarchy again, so that its root is the sandbox's own
// cgroup. In version 2 the processes then move one down, since only a cgroup without any can hand down controllers.
func remountCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		kind, options := "cgroup", strings.Join(h.options, ",")
		if h.v2 {
			kind, options = "cgroup2", ""
		} else if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		// Not over the old mount: the kernel refuses a file system on top of itself.
		if err := unix.Unmount(h.mount, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the host's %s: %w", h.mount, err)
		}
		if err := unix.Mount(kind, h.mount, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount the sandbox's part of %s: %w", h.mount, err)
		}
		if !h.v2 {
			continue
		}
		inner := filepath.Join(h.mount, "init")
		if err := os.Mkdir(inner, 0o755); err != nil {
			return err
		}
		if err := join(inner); err != nil {
			return err
		}
		handDownControllers(h.mount)
	}
	return nil
}
