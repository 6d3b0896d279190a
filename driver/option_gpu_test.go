package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	nstructs "github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/runtime"
)

// Nomad tries again what may pass, and tells the user of the rest at once.
func TestGrants_WhichErrorsPass(t *testing.T) {
	unknown, err := claim.ParseToken("0123456789abcdef0123456789abcdef")
	must.NoError(t, err)
	cases := []struct {
		name    string
		spoil   func(t *testing.T, g *grants, env map[string]string, made *claim.Claim)
		want    string
		passing bool
	}{
		{"another container has it", func(t *testing.T, g *grants, _ map[string]string, made *claim.Claim) {
			process := exec.Command("sleep", "1000")
			must.NoError(t, process.Start())
			t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
			must.NoError(t, g.ledger.Bind(t.Context(), made.ID, claim.Container{ID: "c0", InitPID: process.Process.Pid}))
		}, "still runs", true},
		{"the ledger cannot be read", func(t *testing.T, g *grants, _ map[string]string, _ *claim.Claim) {
			claims := filepath.Join(g.config.StateDir, "claims")
			must.NoError(t, os.RemoveAll(claims))
			must.NoError(t, os.WriteFile(claims, nil, 0o600))
		}, "look up the task's claims", true},
		{"the region cannot be made", func(t *testing.T, g *grants, _ map[string]string, _ *claim.Claim) {
			must.NoError(t, os.RemoveAll(g.config.RunDir))
			must.NoError(t, os.WriteFile(g.config.RunDir, nil, 0o600))
		}, "preparing the region", true},
		{"an unknown token", func(_ *testing.T, _ *grants, env map[string]string, _ *claim.Claim) {
			clear(env)
			env[unknown.EnvName()] = unknown.Reveal()
		}, "no claim in the ledger", false},
		{"a bad variable", func(_ *testing.T, _ *grants, env map[string]string, _ *claim.Claim) {
			env[claim.EnvPrefix+"x"] = "y"
		}, "holds no claim token", false},
		{"no driver", func(*testing.T, *grants, map[string]string, *claim.Claim) {}, "driver", false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			hook, err := os.Executable()
			must.NoError(t, err)
			g := &grants{logger: testLogger(), config: runtime.Config{
				StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
				HookPath: hook, ShadowDir: dir, DriverRoot: t.TempDir(),
			}}
			_, err = g.open()
			must.NoError(t, err)
			claimtest.RemoveRegions(t, g.config.RunDir)
			made, token, err := g.ledger.Reserve(t.Context(), claim.Request{
				GPU: claim.GPU{UUID: "GPU-11111111-1111-1111-1111-111111111111"}, Slices: []string{"s"},
				LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
			})
			must.NoError(t, err)
			env := map[string]string{token.EnvName(): token.Reveal()}
			tc.spoil(t, g, env, made)
			_, err = g.of(t.Context(), &drivers.TaskConfig{DeviceEnv: env}, "c1", 0)
			must.ErrorContains(t, err, tc.want)
			must.Eq(t, tc.passing, nstructs.IsRecoverable(err), must.Sprint(err))
		})
	}
}
