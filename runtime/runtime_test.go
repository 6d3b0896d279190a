package runtime

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

func TestEdits(t *testing.T) {
	cfg := NodeConfig(t)
	edits, err := Edits(t.Context(), cfg, []Grant{grantOf("aaaaaaaa", GPU0, 0)})
	must.NoError(t, err)
	spec := containerSpec()
	spec.Process.Env = append(spec.Process.Env, "TRANCHE_CLAIM_aaaaaaaa=secret", "NVIDIA_VISIBLE_DEVICES=all")
	must.NoError(t, edits.Modify(spec))

	// CDI sorts what it finds; ours comes after all of it, even where that lies deeper.
	all := destinations(spec)
	must.Eq(t, []string{
		LibDir + "/.tranche/driver-libcuda.so", LibDir + "/libcuda.so.570.124.06",
		LibDir + "/.tranche/driver-libnvidia-ml.so", LibDir + "/libnvidia-ml.so.570.124.06",
		"/.tranche", "/.tranche/claims/aaaaaaaa", "/.tranche/claims/aaaaaaaa/usage",
		shadow.CopiesDir,
	}, all[len(all)-8:])
	must.True(t, slices.Index(all, "/data/deep/down/below") < len(all)-8)
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, devicePaths(spec))
	must.Len(t, 1, spec.Hooks.Prestart) //nolint:staticcheck // see bindingHooks
	must.Eq(t, []string{"PATH=/bin", "LD_PRELOAD=/job/own.so", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
}

func TestEdits_NoGrants(t *testing.T) {
	edits, err := Edits(t.Context(), Config{DriverRoot: "/nonexistent"}, nil)
	must.NoError(t, err)
	spec := containerSpec()
	must.NoError(t, edits.Modify(spec))
	must.Eq(t, containerSpec(), spec)
}

func TestEdits_Errors(t *testing.T) {
	grants := []Grant{grantOf("aaaaaaaa", GPU0, 0)}
	t.Run("relative path in the configuration", func(t *testing.T) {
		cfg := NodeConfig(t)
		cfg.ShadowDir = "build/lib"
		_, err := Edits(t.Context(), cfg, grants)
		must.ErrorContains(t, err, "shadow_dir")
		must.ErrorContains(t, err, "build/lib")
	})
	t.Run("hook missing", func(t *testing.T) {
		cfg := NodeConfig(t)
		must.NoError(t, os.Remove(cfg.HookPath))
		_, err := Edits(t.Context(), cfg, grants)
		must.ErrorContains(t, err, cfg.HookPath)
		must.ErrorContains(t, err, "hook_path")
	})
	t.Run("hook not executable", func(t *testing.T) {
		cfg := NodeConfig(t)
		must.NoError(t, os.Chmod(cfg.HookPath, 0o644))
		_, err := Edits(t.Context(), cfg, grants)
		must.ErrorContains(t, err, "not executable")
	})
	for name, spec := range map[string]*specs.Spec{
		"no spec": nil, "no process": {Linux: &specs.Linux{}}, "not Linux": {Process: &specs.Process{}},
	} {
		t.Run(name, func(t *testing.T) {
			edits, err := Edits(t.Context(), NodeConfig(t), grants)
			must.NoError(t, err)
			must.Error(t, edits.Modify(spec))
		})
	}
}

func TestPrepare(t *testing.T) {
	cfg := NodeConfig(t)
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir})
	must.NoError(t, err)
	reserved, token, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: GPU0}, Slices: []string{GPU0 + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	lookUp := func() []*claim.Claim {
		found, err := ledger.Lookup(t.Context(), token)
		must.NoError(t, err)
		return []*claim.Claim{found}
	}

	edits, err := Prepare(t.Context(), ledger, cfg, "first", lookUp(), 0)
	must.NoError(t, err)
	spec := containerSpec()
	must.NoError(t, edits.Modify(spec))
	region := mountAt(t, spec, "/.tranche/claims/"+reserved.ID)
	for _, file := range []string{"limit", "usage"} {
		_, err := os.Stat(region.Source + "/" + file)
		must.NoError(t, err)
	}
	must.Eq(t, region.Source+"/usage", mountAt(t, spec, region.Destination+"/usage").Source)

	process := exec.Command("sleep", "1000")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill() })
	first := claim.Container{Runtime: "runc", ID: "first", InitPID: process.Process.Pid}
	must.NoError(t, ledger.Bind(t.Context(), reserved.ID, first))
	_, err = Prepare(t.Context(), ledger, cfg, "second", lookUp(), 0)
	var bound *claim.BoundError
	must.True(t, errors.As(err, &bound), must.Sprintf("%v", err))
	must.StrContains(t, err.Error(), "first")
	must.StrContains(t, err.Error(), "second")
	must.False(t, strings.Contains(err.Error(), token.Reveal()))

	must.NoError(t, process.Process.Kill())
	_ = process.Wait()
	_, err = Prepare(t.Context(), ledger, cfg, "second", lookUp(), 0)
	must.NoError(t, err)
}
