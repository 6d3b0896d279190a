//go:build e2e

package e2e

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// dockerLike is an engine with Docker's subcommands.
type dockerLike interface {
	node.Engine
	Command(ctx context.Context, args ...string) *exec.Cmd
	Exec(ctx context.Context, container string, command ...string) *exec.Cmd
}

// living is a container that says what happens to it and leaves at SIGTERM.
const living = `
trap 'echo hup' HUP
trap 'exit 9' TERM
echo out
echo err >&2
while :; do sleep 0.1; done`

// testPlain does with a container without a claim what people do with containers, through runc and through tranche-runtime,
// and checks that both do the same.
func (e *engines) testPlain(t *testing.T, engine dockerLike) {
	for _, runtime := range plainRuntimes(engine) {
		t.Run(runtime, func(t *testing.T) {
			testPlainRun(t, engine, runtime)
			testPlainTerminal(t, engine, runtime)
			testPlainLife(t, engine, runtime)
		})
	}
}

// plainRuntimes are those that an engine's containers are tried with; what tranche-runtime does is compared with runc.
func plainRuntimes(engine node.Engine) []string {
	runtimes := []string{node.RuntimeRunc, node.RuntimeTranche}
	if !slices.Contains(withoutCrun, engine.Name()) {
		runtimes = append(runtimes, node.RuntimeTrancheCrun)
	}
	return runtimes
}

// testCrun checks that crun does with a container by way of tranche-runtime what it does by itself, which may be to refuse.
func testCrun(t *testing.T, engine node.Engine) {
	said, codes := map[string]string{}, map[string]int{}
	for _, runtime := range []string{node.RuntimeCrun, node.RuntimeTrancheCrun} {
		var err error
		said[runtime], err = output(engine.Run(deadline(t), plain(runtime, "sh", "-c", "exit 3")))
		codes[runtime] = exitCode(t, err)
	}
	must.Eq(t, codes[node.RuntimeCrun], codes[node.RuntimeTrancheCrun], must.Sprint(said))
	t.Logf("crun: %s", said[node.RuntimeTrancheCrun])
}

// plain is a container without a claim.
func plain(runtime string, command ...string) node.Container {
	return node.Container{Name: "plain-" + runtime, Image: probeImage, Runtime: runtime, Command: command}
}

// testPlainRun is a container in the foreground: its streams and its exit code.
func testPlainRun(t *testing.T, engine node.Engine, runtime string, flags ...string) {
	t.Helper()
	c := plain(runtime, "sh", "-c", "read line; echo got $line; echo err >&2; ls /dev | grep -c nvidia; exit 42")
	c.Flags = flags
	if len(flags) == 0 {
		c.Flags = []string{"--interactive"}
	}
	cmd := engine.Run(deadline(t), c)
	cmd.Stdin = strings.NewReader("typed\n")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.Eq(t, 42, exitCode(t, err), must.Sprint(stderr.String()))
	must.Eq(t, "got typed\n0\n", string(out))
	must.StrContains(t, stderr.String(), "err\n") // Some engines put warnings of their own there.
}

// testPlainTerminal is a container with a terminal.
func testPlainTerminal(t *testing.T, engine node.Engine, runtime string, flags ...string) {
	t.Helper()
	c := plain(runtime, "sh", "-c", "test -t 0 && test -t 1 && echo terminal")
	c.Flags = flags
	if len(flags) == 0 {
		c.Flags = []string{"--interactive", "--tty"}
	}
	cmd := inTerminal(engine.Run(deadline(t), c))
	typed, err := cmd.StdinPipe() // Nothing is typed, and nobody hangs up.
	must.NoError(t, err)
	defer typed.Close()
	out, err := output(cmd)
	must.NoError(t, err, must.Sprint(out))
	must.StrContains(t, out, "terminal")
}

// testPlainLife is a container in the background, from its start over what is done with it to its end, twice.
func testPlainLife(t *testing.T, engine dockerLike, runtime string) {
	t.Helper()
	do := func(args ...string) string {
		t.Helper()
		out, err := output(engine.Command(deadline(t), args...))
		must.NoError(t, err, must.Sprintf("%v: %s", args, out))
		return strings.TrimSpace(out)
	}
	c := plain(runtime, "sh", "-c", living)
	c.Detach = true
	out, err := output(engine.Run(deadline(t), c))
	must.NoError(t, err, must.Sprint(out))
	t.Cleanup(func() { _, _ = output(engine.Command(deadline(t), "rm", "--force", c.Name)) })
	logged := func(line string) {
		t.Helper()
		must.NoError(t, until(deadline(t), func() (bool, error) {
			return strings.Contains(do("logs", c.Name), line), nil
		}), must.Sprintf("waiting for %q in the log", line))
	}
	logged("out")
	must.StrContains(t, do("logs", c.Name), "err")

	out, err = output(engine.Exec(deadline(t), c.Name, "sh", "-c", "exit 5"))
	if engine.Name() == "nerdctl" { // Whatever the runtime, it ends with 1 and says the code.
		must.StrContains(t, out, "exit code 5")
	} else {
		must.Eq(t, 5, exitCode(t, err), must.Sprint(out))
	}
	do("kill", "--signal", "HUP", c.Name)
	logged("hup")
	do("stop", c.Name)
	must.StrHasSuffix(t, "exited 9", do("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", c.Name))

	do("start", c.Name)
	do("restart", c.Name)
	must.Eq(t, "running", do("inspect", "--format", "{{.State.Status}}", c.Name))
	do("kill", c.Name)
	must.Eq(t, "137", do("wait", c.Name))
	do("rm", c.Name)
}

// testPlainCtr does the same with containerd's own command line, as far as it has it.
func (e *engines) testPlainCtr(t *testing.T, ctr *node.Ctr) {
	for _, runtime := range plainRuntimes(ctr) {
		t.Run(runtime, func(t *testing.T) {
			testPlainRun(t, ctr, runtime, "--cwd", "/")
			testPlainTerminal(t, ctr, runtime, "--tty")
			c := plain(runtime, "sh", "-c", living)
			run := e.launch(t, ctr, c)
			run.says(t, func(line string) bool { return line == "out" })
			_, err := output(ctr.Exec(deadline(t), c.Name, "sh", "-c", "exit 5"))
			must.Eq(t, 5, exitCode(t, err))
			out, err := output(ctr.Signal(deadline(t), c.Name, "SIGHUP"))
			must.NoError(t, err, must.Sprint(out))
			run.says(t, func(line string) bool { return line == "hup" })
			must.Eq(t, 9, run.end(t))
		})
	}
}
