package wrapper_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// What the edits write into the spec's hooks is what tranche-hook understands.
func TestHooksOfTheSpec(t *testing.T) {
	n := newNode(t, "/bin/true")
	made, env := n.reserve(runtimetest.GPU0, "slice-000")
	bundle := n.bundle("b", "true", env)
	n.must(n.oci("create", "--bundle", bundle, "c1"))
	var spec specs.Spec
	must.NoError(t, json.Unmarshal([]byte(readFile(t, filepath.Join(bundle, "config.json"))), &spec))

	process := exec.Command("sleep", "1000")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill() })
	run := func(hook specs.Hook) {
		state, err := json.Marshal(specs.State{ID: "c1", Pid: process.Process.Pid, Bundle: bundle})
		must.NoError(t, err)
		n.must(&exec.Cmd{Path: hook.Path, Args: hook.Args, Env: hook.Env, Stdin: strings.NewReader(string(state))})
	}
	run(spec.Hooks.Prestart[0]) //nolint:staticcheck // see bindingHooks
	must.Eq(t, "c1", n.holder(made.ID).ID)
	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	run(spec.Hooks.Poststop[0])
	must.Nil(t, n.holder(made.ID))
}
