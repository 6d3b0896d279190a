package install

import (
	"fmt"
	"slices"
	"strings"
)

func dockerDaemons() ([]process, error) {
	return nodeProcesses(func(program string) bool { return program == "dockerd" })
}

// refuseDockerFlags looks at the dockerd that runs: one that is given runtimes on its command line does not start any
// more once its configuration file has some, too.
func refuseDockerFlags() error {
	daemons, err := dockerDaemons()
	if err != nil {
		return err
	}
	for _, daemon := range daemons {
		for _, arg := range daemon.args[1:] {
			name, _, _ := strings.Cut(arg, "=")
			if name == "--add-runtime" || name == "--default-runtime" {
				return fmt.Errorf("dockerd (process %d) runs with %s on its command line, and would not start with runtimes "+
					"in its configuration file as well: move that to the file first; nothing was changed", daemon.pid, arg)
			}
		}
	}
	return nil
}

// stoppedByRestart returns the containers that a restart of Docker would stop.
func stoppedByRestart(root *jsonObject) ([]string, error) {
	if on := root.get("live-restore"); on != nil && strings.TrimSpace(on.String()) == "true" {
		return nil, nil
	}
	daemons, err := dockerDaemons()
	if err != nil || slices.ContainsFunc(daemons, func(p process) bool { return slices.Contains(p.args, "--live-restore") }) {
		return nil, err
	}
	return dockerContainers()
}
