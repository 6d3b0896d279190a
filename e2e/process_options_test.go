//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestProcessOptions covers the options of a process and its resources that rest on what the agent hands over: where its
// cgroups are, what a core can do, which pipes it reads.
func TestProcessOptions(t *testing.T) {
	n := startNode(t)
	t.Run("cores", func(t *testing.T) { testCores(t, n) })
	t.Run("hard limit", func(t *testing.T) { testHardLimit(t, n) })
	t.Run("terminal", func(t *testing.T) {
		out := completed(t, n, task{job: "terminal", command: "sh", args: []string{"-c", "tty; echo error >&2"},
			configExtra: "tty = true"})
		must.Eq(t, "/dev/pts/0\r\nerror\r\n", out)
	})
	t.Run("no logs", func(t *testing.T) {
		start(t, n, task{job: "quiet", jobType: "batch", command: "sh",
			args:        []string{"-c", `[ "$(readlink /proc/$$/fd/1)" = /dev/null ]`},
			configExtra: `labels = { "com.example/a" = "b" }`, taskExtra: "logs {\n disabled = true\n }"})
		_, err := n.WaitStatus(deadline(t), "quiet", "complete")
		must.NoError(t, err)
	})
}

// TestDisableLogCollection checks that the agent starts no process for the logs of a driver that collects none.
func TestDisableLogCollection(t *testing.T) {
	n := startNode(t, func(c *node.Config) { c.DriverConfig = "disable_log_collection = true\n" })
	start(t, n, task{job: "quiet", command: "sh", args: []string{"-c", "echo nobody reads this; exec sleep 600"}})
	alloc := running(t, n, "quiet")
	entries, err := os.ReadDir(filepath.Join(n.Dir, "nomad/alloc", alloc.ID, "alloc/logs"))
	must.NoError(t, err)
	must.SliceEmpty(t, entries)
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must.NoError(t, err)
	for _, file := range commands {
		command, _ := os.ReadFile(file) // gone by now, perhaps
		must.StrNotContains(t, string(command), "\x00logmon")
	}
	must.NoError(t, n.StopJob(deadline(t), "quiet"))
}

// testCores compares the cgroup of a task with the one that Nomad makes, and the cores that it may use.
func testCores(t *testing.T, n *node.Node) {
	const script = "grep -E ':(cpuset)?:/nomad' /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status"
	shared := completed(t, n, task{job: "shared", command: "sh", args: []string{"-c", script}})
	must.RegexMatch(t, regexp.MustCompile(`(cpuset:/nomad/share|::/nomad.slice/share.slice/\S+\.t\.scope)\n`), shared)

	s := task{job: "reserved", jobType: "batch", command: "sh", args: []string{"-c", script}}
	job, err := n.ParseJob(strings.Replace(s.hcl(), "cpu    = 50", "cores = 1", 1))
	must.NoError(t, err)
	_, err = n.Run(deadline(t), job)
	must.NoError(t, err)
	alloc, err := n.WaitStatus(deadline(t), "reserved", "complete")
	must.NoError(t, err)
	out := logs(t, n, alloc.ID, "stdout")
	must.StrContains(t, out, "/"+alloc.ID+".t")
	must.RegexMatch(t, regexp.MustCompile(`(cpuset:/nomad/reserve/|::/nomad.slice/reserve.slice/)`), out)
	must.RegexMatch(t, regexp.MustCompile(`Cpus_allowed_list:\s+[0-9]+\n`), out)
}

// testHardLimit checks that the task's 50 MHz are so much of a core as the agent says that a core has.
func testHardLimit(t *testing.T, n *node.Node) {
	client, err := n.WaitNode(deadline(t), func(*api.Node) bool { return true })
	must.NoError(t, err)
	number := func(attribute string) float64 {
		value, err := strconv.ParseFloat(client.Attributes[attribute], 64)
		must.NoError(t, err)
		return value
	}
	quota := max(1000, math.Round(50/(number("cpu.totalcompute")/number("cpu.numcores"))*100000))
	out := completed(t, n, task{job: "hard", command: "sh", configExtra: "cpu_hard_limit = true", args: []string{"-c",
		"cd /sys/fs/cgroup; cat cpu.max || cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us"}})
	must.Eq(t, []string{fmt.Sprintf("%.0f", quota), "100000"}, strings.Fields(out))
}
