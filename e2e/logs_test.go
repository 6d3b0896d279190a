//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/procfs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// TestLogProcessDies kills Nomad's log process under a task that writes much: the task goes on, and has logs again after a
// restart.
func TestLogProcessDies(t *testing.T) {
	n := startNode(t)
	start(t, n, task{job: "writer", command: "sh", args: []string{"-c",
		"n=$(cat /alloc/data/n); n=$((n+1)); echo $n >/alloc/data/n; echo begun $n; [ $n = 1 ] || exec sleep 600; i=0; while :; do i=$((i+1)); head -c 65536 /dev/zero; echo $i >/alloc/data/i; sleep 0.05; done"}})
	alloc := running(t, n, "writer")
	saysLine(t, n, alloc.ID, "begun 1")
	progress := func() int {
		text, _ := os.ReadFile(filepath.Join(n.Dir, "nomad/alloc", alloc.ID, "alloc/data/i"))
		i, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return i
	}
	processes, err := procfs.AllProcs()
	must.NoError(t, err)
	killed := 0
	for _, p := range processes {
		if args, err := p.CmdLine(); err == nil && slices.Contains(args, "logmon") {
			must.NoError(t, unix.Kill(p.PID, unix.SIGKILL))
			killed++
		}
	}
	must.Positive(t, killed)
	before := progress()
	must.NoError(t, until(deadline(t), func() (bool, error) { return progress() > before+100, nil }), must.Sprint("the task hangs"))
	info, _, err := n.Agent.API.Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	must.Eq(t, "running", info.TaskStates["t"].State)
	must.True(t, slices.ContainsFunc(info.TaskStates["t"].Events, func(event *api.TaskEvent) bool {
		return strings.Contains(event.DisplayMessage, "nobody reads the task's logs")
	}))

	must.NoError(t, n.Agent.API.Allocations().Restart(info, "t", nil))
	must.NoError(t, until(deadline(t), func() (bool, error) {
		text, err := n.Logs(deadline(t), alloc.ID, "t", "stdout")
		return strings.Contains(text, "begun 2"), err
	}), must.Sprint("there are no logs after a restart"))
}
