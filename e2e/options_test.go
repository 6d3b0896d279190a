//go:build e2e

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestExampleService runs the example of a service on a node that is configured as the example of an agent says.
func TestExampleService(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(build, "../examples/containerd-agent.hcl"))
	must.NoError(t, err)
	block := regexp.MustCompile(`(?s)plugin "nomad-driver-tranche" \{\n  config \{\n(.*)\n  \}\n\}`).FindSubmatch(text)
	must.SliceLen(t, 2, block)
	n := startNode(t, func(c *node.Config) {
		c.DriverConfig = string(block[1]) + "\nvolume_dir = \"" + filepath.Join(c.Dir, "volumes") + "\"\n"
	})
	job, err := n.Job(filepath.Join(build, "../examples/service.nomad.hcl"), "image="+probeImage)
	must.NoError(t, err)
	_, err = n.Run(deadline(t), job)
	must.NoError(t, err)
	alloc := running(t, n, "web")

	info, _, err := n.Agent.API.Allocations().Info(alloc.ID, nil)
	must.NoError(t, err)
	exec := func(script string) string {
		var stdout, stderr bytes.Buffer
		_, err := n.Agent.API.Allocations().Exec(deadline(t), info, "server", false, []string{"sh", "-c", script},
			strings.NewReader(""), &stdout, &stderr, make(chan api.TerminalSize), nil)
		must.NoError(t, err, must.Sprint(stderr.String()))
		return stdout.String()
	}
	must.StrContains(t, exec("until wget -q -O - http://127.0.0.1:8080/; do sleep 0.1; done"), "Hello from "+alloc.ID)
	must.Eq(t, "web\n/tmp\n1024\n", exec("hostname; pwd; cat /proc/sys/net/core/somaxconn"))
	// Of the task itself: what `runc exec` starts may get the hard limit (github.com/opencontainers/runc/issues/4195).
	must.StrContains(t, strings.Join(strings.Fields(exec("grep 'Max open files' /proc/1/limits")), " "), "Max open files 1024 4096")
	must.StrContains(t, exec("cat /etc/hosts"), "database")
	must.DirExists(t, filepath.Join(n.Dir, "volumes", "web-cache"))
	must.NoError(t, n.StopJob(deadline(t), "web"))
}

// TestBadOptions asks the server about jobs with options that are wrong, and then runs them: the server knows no schema of
// a driver and finds nothing wrong; the client does, and nothing is started.
func TestBadOptions(t *testing.T) {
	n := startNode(t)
	for _, c := range []struct {
		job, option string
		event       string
		want        []string
	}{
		{"unknown", `imagee = "x"`, "Failed Validation", []string{"imagee"}},
		{"type", `args = { a = "b" }`, "Failed Validation", []string{"args"}},
		{"value", `work_dir = "here"`, "Driver Failure", []string{`option work_dir = "here"`, "absolute path"}},
		{"two", "work_dir = \"here\"\nnetwork_mode = \"wifi\"", "Driver Failure",
			[]string{`option work_dir = "here"`, `option network_mode = "wifi"`}},
	} {
		t.Run(c.job, func(t *testing.T) {
			s := task{job: c.job, configExtra: c.option}
			job, err := n.ParseJob(s.hcl())
			must.NoError(t, err)
			validated, _, err := n.Agent.API.Jobs().Validate(job, nil)
			must.NoError(t, err)
			must.Eq(t, "", validated.Error)
			planned, _, err := n.Agent.API.Jobs().Plan(job, false, nil)
			must.NoError(t, err)
			must.MapEmpty(t, planned.FailedTGAllocs)

			start(t, n, s)
			failsWith(t, n, c.job, append(c.want, c.event)...)
		})
	}
}
