package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var cgroupChecks = []check{{"cgroups", "controllers", cgroupControllers}}

// cgroupControllers looks for what container runtimes limit containers with. Version 2 has devices in the kernel itself.
func cgroupControllers(_ context.Context, n *Node) finding {
	root := n.path("/sys/fs/cgroup")
	version, needed, found := "version 1", []string{"cpu", "devices", "memory", "pids"}, []string(nil)
	if text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		version, needed, found = "version 2", []string{"cpu", "memory", "pids"}, strings.Fields(string(text))
	} else {
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			found = append(found, strings.Split(e.Name(), ",")...)
		}
	}
	var missing []string
	for _, name := range needed {
		if !slices.Contains(found, name) {
			missing = append(missing, name)
		}
	}
	switch {
	case len(found) == 0:
		return fault(root, "no cgroups", "mount them: systemd does, or mount -t cgroup2 none /sys/fs/cgroup")
	case slices.Contains(missing, "devices") || slices.Contains(missing, "memory"):
		return fault(root, version+" without "+strings.Join(missing, " and "),
			"have the kernel offer them: cgroup_enable="+missing[0]+" on its command line")
	case len(missing) > 0:
		return warning(root, version+" without "+strings.Join(missing, " and "), "tasks cannot be limited by them: have the "+
			"kernel offer them")
	}
	return ok(root, "%s with %s", version, strings.Join(needed, ", "))
}
