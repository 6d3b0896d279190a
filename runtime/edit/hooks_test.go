package edit

import (
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	program "github.com/tranche-gpu/tranche/hooks"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

//nolint:staticcheck // prestart, see BindingHooks
func TestBindingHooks(t *testing.T) {
	earlier := specs.Hook{Path: "/job/hook", Args: []string{"hook"}}
	hooks := BindingHooks{
		Path: "/usr/bin/tranche-hook", StateDir: "/s", RunDir: "/r",
		Claims: []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0), claimOf("bbbbbbbb", runtimetest.GPU1, 1)},
	}
	for name, spec := range map[string]*specs.Spec{
		"no hooks yet":   {},
		"hooks of a job": {Hooks: &specs.Hooks{Prestart: []specs.Hook{earlier}, Poststop: []specs.Hook{earlier}}},
	} {
		t.Run(name, func(t *testing.T) {
			had := 0
			if spec.Hooks != nil {
				had = 1
			}
			must.NoError(t, hooks.Modify(spec))
			must.Len(t, had+1, spec.Hooks.Prestart)
			must.Len(t, had+1, spec.Hooks.Poststop)
			if had > 0 {
				must.Eq(t, earlier, spec.Hooks.Prestart[0])
				must.Eq(t, earlier, spec.Hooks.Poststop[0])
			}
			for role, hook := range map[string]specs.Hook{
				"prestart": spec.Hooks.Prestart[had], "poststop": spec.Hooks.Poststop[had],
			} {
				must.Eq(t, "/usr/bin/tranche-hook", hook.Path)
				must.Eq(t, []string{"tranche-hook", role, "--state-dir", "/s", "--run-dir", "/r",
					"--claim", "aaaaaaaa", "--claim", "bbbbbbbb"}, hook.Args)
				must.Eq(t, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}, hook.Env)
				must.NotNil(t, hook.Timeout)
				left := time.Duration(*hook.Timeout)*time.Second - program.Patience
				must.Greater(t, time.Second, left, must.Sprint("to say why it gave up, before the runtime kills it"))
			}
		})
	}
}
