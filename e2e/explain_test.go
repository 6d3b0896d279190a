//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestExplain compares what `tranche explain` says of jobs with what becomes of them when they run.
func TestExplain(t *testing.T) {
	n := startNode(t)
	waiting := filepath.Join(build, "../examples/waiting.nomad.hcl") // so many slices of GPU 0, which has 140
	runExample(t, n, "first", 1)                                     // 8 slices, on GPU 0

	code, out := explained(t, n, "first")
	must.Zero(t, code, must.Sprint(out))
	must.StrContains(t, out, "Group probe runs: it runs on ")

	code, out = explained(t, n, "--var", "slices=132", waiting)
	must.Zero(t, code, must.Sprint(out))
	must.StrContains(t, out, "Group probe fits: ")

	code, out = explained(t, n, "--var", "slices=133", waiting)
	must.Eq(t, 2, code, must.Sprint(out))
	must.StrContains(t, out, "Group probe waits: too little is free: devices: no devices match request (1 node)")
	must.StrContains(t, out, "first (8)")

	code, out = explained(t, n, "--var", "slices=141", waiting)
	must.Eq(t, 3, code, must.Sprint(out))
	must.StrContains(t, out, "Group probe never: task probe requests 141 of nvidia/slice in one device block, and no GPU has more than 140")

	// Which GPU meets a constraint is for Nomad to say.
	text, err := os.ReadFile(waiting)
	must.NoError(t, err)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.nomad.hcl")
	must.NoError(t, os.WriteFile(elsewhere, []byte(strings.Replace(string(text), `value     = "0"`, `value     = "9"`, 1)), 0o644))
	code, out = explained(t, n, "--var", "slices=1", elsewhere)
	must.Eq(t, 3, code, must.Sprint(out))
	must.StrContains(t, out, "Group probe never: Nomad leaves out all nodes: missing devices (1 node)")

	code, out = explained(t, n, "nothing")
	must.Eq(t, 1, code)
	must.StrContains(t, out, `there is no file and no job "nothing"`)

	// The job that is to wait does so, and runs when what it waits for is free.
	job, err := n.Job(waiting, "slices=133")
	must.NoError(t, err)
	eval, err := n.Run(deadline(t), job)
	must.NoError(t, err)
	must.NotEq(t, "", eval.BlockedEval)
	code, out = explained(t, n, "waiting")
	must.Eq(t, 2, code, must.Sprint(out))
	must.NoError(t, n.StopJob(deadline(t), "first"))
	allRunning(t, n, "waiting", 1)
	code, out = explained(t, n, "waiting")
	must.Zero(t, code, must.Sprint(out))
	must.StrContains(t, out, "waiting (133)")
}

// explained runs `tranche explain` and returns its exit code and all that it prints.
func explained(t *testing.T, n *node.Node, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(deadline(t), filepath.Join(build, "bin/tranche"), append([]string{"explain"}, args...)...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+n.Agent.Address)
	text, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(text)
}
