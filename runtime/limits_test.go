package runtime

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// unlimitedGrant is a grant without a limit.
func unlimitedGrant(id, uuid string, index int, mode claim.Mode) Grant {
	grant := grantOf(id, uuid, index)
	grant.Claim.Mode, grant.Claim.Unlimited = mode, true
	return grant
}

func edited(t *testing.T, cfg Config, grants ...Grant) *specs.Spec {
	t.Helper()
	edits, err := Edits(t.Context(), cfg, grants)
	must.NoError(t, err)
	spec := containerSpec()
	spec.Process.Env = append(spec.Process.Env, "TRANCHE_CLAIM_aaaaaaaa=secret", "NVIDIA_VISIBLE_DEVICES=all")
	must.NoError(t, edits.Modify(spec))
	return spec
}

// Where nothing is limited, the container has its GPUs, the hooks that bind and check, and an environment without tokens,
// and nothing of what a limit takes.
//
//nolint:staticcheck // prestart, see bindingHooks
func TestEdits_Unlimited(t *testing.T) {
	for _, mode := range []claim.Mode{claim.ModeExclusive, claim.ModeTimeslice, claim.ModeMIG} {
		t.Run(string(mode), func(t *testing.T) {
			spec := edited(t, NodeConfig(t), unlimitedGrant("aaaaaaaa", GPU1, 1, mode))
			must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, devicePaths(spec))
			for _, at := range destinations(spec) {
				must.StrNotContains(t, at, ".tranche")
			}
			driver := mountAt(t, spec, LibDir+"/libcuda.so.570.124.06")
			must.StrHasSuffix(t, LibDir+"/libcuda.so.570.124.06", driver.Source)
			must.StrNotHasSuffix(t, shadow.CUDA, driver.Source)
			must.Eq(t, []string{"PATH=/bin", "LD_PRELOAD=/job/own.so", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)

			must.Len(t, 1, spec.Hooks.Prestart)
			must.Len(t, 1, spec.Hooks.Poststop)
			must.SliceContainsSubset(t, spec.Hooks.Prestart[0].Args, []string{"prestart", "--claim", "aaaaaaaa"})
			must.Len(t, 1, spec.Hooks.CreateContainer)
			check := spec.Hooks.CreateContainer[0]
			must.Eq(t, []string{"--unlimited", "--gpu-node", "/dev/nvidiactl", "--gpu-node", "/dev/nvidia1"}, check.Args[8:])
			must.Eq(t, "createContainer", check.Args[1])
			must.Eq(t, hookEnv(), check.Env)
		})
	}
}

// One claim with a limit has the shadow in front of all GPUs, and each has a region.
func TestEdits_LimitedBesideUnlimited(t *testing.T) {
	spec := edited(t, NodeConfig(t), unlimitedGrant("aaaaaaaa", GPU0, 0, claim.ModeExclusive), grantOf("bbbbbbbb", GPU1, 1))
	all := destinations(spec)
	must.SliceContainsAll(t, all[len(all)-10:], []string{
		LibDir + "/.tranche/driver-libcuda.so", LibDir + "/libcuda.so.570.124.06",
		LibDir + "/.tranche/driver-libnvidia-ml.so", LibDir + "/libnvidia-ml.so.570.124.06",
		"/.tranche", "/.tranche/claims/aaaaaaaa", "/.tranche/claims/aaaaaaaa/usage",
		"/.tranche/claims/bbbbbbbb", "/.tranche/claims/bbbbbbbb/usage", shadow.CopiesDir,
	})
	must.SliceContains(t, spec.Hooks.CreateContainer[0].Args, "--shadow-dir")
	must.SliceNotContains(t, spec.Hooks.CreateContainer[0].Args, "--unlimited")
}

// A CDI spec of NVIDIA's has hooks, and may have no libcuda: what that means depends on whether there is a limit.
func TestEdits_NVIDIAsHooks(t *testing.T) {
	const hooks = `"hooks": [
		{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "enable-cuda-compat"]},
		{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits"]}
	], "mounts": [`
	for name, tc := range map[string]struct {
		grant Grant
		kept  bool
	}{
		"limited": {grantOf("aaaaaaaa", GPU0, 0), false}, "unlimited": {unlimitedGrant("aaaaaaaa", GPU0, 0, claim.ModeExclusive), true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := NodeConfig(t)
			WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json"), cfg.DriverRoot, func(content string) string {
				return strings.Replace(content, `"mounts": [`, hooks, 1)
			})
			var kept []string
			for _, hook := range edited(t, cfg, tc.grant).Hooks.CreateContainer {
				if hook.Path == "/usr/bin/nvidia-cdi-hook" {
					kept = append(kept, hook.Args[1])
					must.Eq(t, hookEnv(), hook.Env)
				}
			}
			must.Eq(t, tc.kept, slices.Equal(kept, []string{cudaCompatHook}), must.Sprint(kept))

			WriteCDISpec(t, filepath.Join(cfg.DriverRoot, "etc/cdi/gpus.json"), cfg.DriverRoot, func(content string) string {
				return strings.ReplaceAll(content, "libcuda.so", "libelse.so")
			})
			WriteFile(t, filepath.Join(cfg.DriverRoot, LibDir, "libelse.so."+driverVersion), "else")
			_, err := Edits(t.Context(), cfg, []Grant{tc.grant})
			must.Eq(t, tc.kept, err == nil, must.Sprintf("%v", err))
		})
	}
}

func TestRestricted_32BitWithoutALimit(t *testing.T) {
	for _, limited := range []bool{false, true} {
		edits := driverEdits(t)
		files, _, _ := arrived(t, restricted(edits, everyCapability, limited))
		must.Eq(t, !limited, slices.Contains(files, "32-bit libcuda.so."+driverVersion), must.Sprint(files))
	}
}

// holdings is a node with a ledger.
type holdings struct {
	t      *testing.T
	cfg    Config
	ledger *claim.Ledger
}

func newHoldings(t *testing.T) *holdings {
	t.Helper()
	cfg := NodeConfig(t)
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir})
	must.NoError(t, err)
	return &holdings{t, cfg, ledger}
}

func (h *holdings) reserve(uuid string, mode claim.Mode) *claim.Claim {
	h.t.Helper()
	req := claim.Request{GPU: claim.GPU{UUID: uuid}, Slices: []string{uuid}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad, Mode: mode}
	if mode == claim.ModeMPS {
		req.MPS = &claim.MPS{Percentage: 30}
	}
	made, _, err := h.ledger.Reserve(h.t.Context(), req)
	must.NoError(h.t, err)
	return made
}

func (h *holdings) prepare(hostMemoryBytes uint64, claims ...*claim.Claim) (*specs.Spec, error) {
	h.t.Helper()
	edits, err := Prepare(h.t.Context(), h.ledger, h.cfg, "c1", claims, hostMemoryBytes)
	if err != nil {
		return nil, err
	}
	spec := containerSpec()
	return spec, edits.Modify(spec)
}

func (h *holdings) regions() []string {
	entries, _ := os.ReadDir(filepath.Join(h.cfg.RunDir, "claims"))
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestPrepare_UnlimitedHasNoRegion(t *testing.T) {
	h := newHoldings(t)
	whole := h.reserve(GPU0, claim.ModeExclusive)
	_, err := h.prepare(0, whole)
	must.NoError(t, err)
	must.SliceEmpty(t, h.regions())
	_, err = h.prepare(1<<20, whole)
	must.ErrorContains(t, err, "without a limit only")

	// With one that has a limit, both have; memory on the host is of the one with the limit.
	limited := h.reserve(GPU1, claim.ModeSlice)
	_, err = h.prepare(1<<20, whole, limited)
	must.NoError(t, err)
	must.SliceContainsAll(t, h.regions(), []string{whole.ID, limited.ID})
	for id, want := range map[string]uint64{whole.ID: 0, limited.ID: 1 << 20} {
		u, err := h.ledger.Usage(t.Context(), id)
		must.NoError(t, err)
		must.Eq(t, want > 0, u.Spill != nil)
	}
}

func TestPrepare_UnlimitedIsForOneContainer(t *testing.T) {
	h := newHoldings(t)
	whole := h.reserve(GPU0, claim.ModeExclusive)
	process := exec.Command("sleep", "1000")
	must.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	must.NoError(t, h.ledger.Bind(t.Context(), whole.ID, claim.Container{ID: "first", InitPID: process.Process.Pid}))
	claims, _, err := h.ledger.List(t.Context())
	must.NoError(t, err)
	_, err = h.prepare(0, claims...)
	var bound *claim.BoundError
	must.True(t, errors.As(err, &bound), must.Sprintf("%v", err))
}

func TestPrepare_InstanceThatIsNotMade(t *testing.T) {
	h := newHoldings(t)
	made, _, err := h.ledger.Reserve(t.Context(), claim.Request{
		Slices: []string{"s"}, LimitBytes: 1 << 30, Mode: claim.ModeMIG, Unlimited: true, Owner: claim.OwnerNomad,
		MIG: &claim.MIG{GPUUUID: GPU0, Profile: "1g.18gb", Size: 1},
	})
	must.NoError(t, err)
	_, err = h.prepare(0, made)
	must.ErrorContains(t, err, "is not made yet")
}
