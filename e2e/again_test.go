//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// mistake is something in a command line for which no runtime can create the container.
type mistake struct {
	flags, command []string
	// says is what the runtime says of it.
	says string
}

// At the first, runc and crun have bound the claim by then; at the second crun has not.
var mistakes = map[string]mistake{
	"program": {command: []string{"/no/such/program"}, says: "/no/such/program"},
	"sysctl":  {command: []string{"echo"}, flags: []string{"--sysctl", "kernel.msgmax=much"}, says: "/proc/sys/kernel/msgmax"},
}

// testAgain mistypes a command line that asks for all of a GPU, and then gets it right at once.
func (e *engines) testAgain(t *testing.T, engine node.Engine) {
	all := []string{"TRANCHE_GPU_MEMORY=140GiB", "TRANCHE_GPU=0"}
	for _, runtime := range []string{node.RuntimeTranche, node.RuntimeTrancheCrun} {
		for name, wrong := range mistakes {
			t.Run(runtime+"/"+name, func(t *testing.T) {
				e.t = t
				c := node.Container{
					Name: strings.Join([]string{"again", runtime, name}, "-"), Image: probeImage, Runtime: runtime, Env: all,
					Flags: wrong.flags, Command: wrong.command,
				}
				out, err := output(engine.Run(deadline(t), c))
				must.Positive(t, exitCode(t, err), must.Sprint(out))
				must.StrContains(t, out, wrong.says)

				c.Flags, c.Command = nil, []string{"echo", "it started"}
				out, err = output(engine.Run(deadline(t), c))
				must.NoError(t, err, must.Sprint(out))
				must.StrContains(t, out, "it started")
				must.NoError(t, until(deadline(t), func() (bool, error) { return e.held() == nil, nil }))
				mustBeFree(t, e.Node)
			})
		}
	}
}
