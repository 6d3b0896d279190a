package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// process is a process of this node: root's, with this node's files.
type process struct {
	pid  int
	args []string
}

// nodeProcesses lists the processes whose program a function accepts. An engine that runs in a container, such as Docker in
// Docker, or for a user has other configuration files than those that are edited here.
func nodeProcesses(accepts func(program string) bool) ([]process, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, p := range all {
		args, err := p.CmdLine()
		if err != nil || len(args) == 0 || !accepts(filepath.Base(args[0])) { // it may have ended
			continue
		}
		if dir := fmt.Sprintf("/proc/%d", p.PID); ownedByRoot(dir) && sameFile(filepath.Join(dir, "root/etc"), "/etc") {
			found = append(found, process{p.PID, args})
		}
	}
	return found, nil
}

func ownedByRoot(path string) bool {
	var stat unix.Stat_t
	return unix.Stat(path, &stat) == nil && stat.Uid == 0
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// daemons are the processes of engines: a program, and an argument if its other commands are none.
var daemons = map[string][]string{"docker": {"dockerd"}, "containerd": {"containerd"}, "nomad": {"nomad", "agent"}}

// Running reports whether an engine runs on this node. Podman never does.
func Running(engine string) (bool, error) {
	daemon, found := daemons[engine]
	if !found {
		return false, nil
	}
	processes, err := nodeProcesses(func(program string) bool { return program == daemon[0] })
	return slices.ContainsFunc(processes, func(p process) bool {
		return len(daemon) == 1 || slices.Contains(p.args[1:], daemon[1])
	}), err
}

// taskContainer is what the task driver calls its containers: the ID of an allocation, a task's name and a checksum.
var taskContainer = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-.*-[0-9a-f]{8}$`)

// TaskContainers returns the containers of the task driver that run on this node, with a claim or without.
func TaskContainers() ([]string, error) {
	return containers(func(c container) bool { return taskContainer.MatchString(c.id) })
}

// RuntimeContainers returns the containers of any engine that tranche-runtime has started: the engine calls it again to end them.
func RuntimeContainers() ([]string, error) {
	return containers(func(c container) bool { return filepath.Base(c.runtime) == filepath.Base(RuntimePath("")) })
}

// dockerContainers returns Docker's.
func dockerContainers() ([]string, error) {
	return containers(func(c container) bool { return c.namespace == "moby" })
}

// container is what a shim of containerd's, or Podman's conmon, says of its container.
type container struct{ id, namespace, runtime string }

// containers returns the IDs of the containers that a function accepts.
func containers(accepts func(container) bool) ([]string, error) {
	monitors, err := nodeProcesses(func(program string) bool {
		return strings.HasPrefix(program, "containerd-shim-") || program == "conmon"
	})
	var found []string
	for _, monitor := range monitors {
		flags := map[string]string{}
		for i := 1; i+1 < len(monitor.args); i++ {
			flags[monitor.args[i]] = monitor.args[i+1]
		}
		c := container{flags["-id"], flags["-namespace"], flags["-r"]}
		if filepath.Base(monitor.args[0]) == "conmon" {
			c.id = flags["-c"]
		} else if runtime, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/runtime", monitor.pid)); err == nil {
			c.runtime = string(runtime) // a shim's directory is the bundle
		}
		if accepts(c) && !slices.Contains(found, c.id) {
			found = append(found, c.id)
		}
	}
	return found, err
}
