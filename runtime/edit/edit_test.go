package edit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

func TestNew(t *testing.T) {
	node := testNode(t)
	edits, err := New(t.Context(), node, []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)})
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	spec.Process.Env = append(spec.Process.Env, "TRANCHE_CLAIM_aaaaaaaa=secret", "NVIDIA_VISIBLE_DEVICES=all")
	must.NoError(t, edits.Modify(spec))

	// CDI sorts what it finds; ours comes after all of it, even where that lies deeper.
	all := runtimetest.Destinations(spec)
	must.Eq(t, []string{
		runtimetest.LibDir + "/.tranche/driver-libcuda.so", runtimetest.LibDir + "/libcuda.so.570.124.06",
		runtimetest.LibDir + "/.tranche/driver-libnvidia-ml.so", runtimetest.LibDir + "/libnvidia-ml.so.570.124.06",
		"/.tranche", "/.tranche/claims/aaaaaaaa", "/.tranche/claims/aaaaaaaa/usage",
		shadow.CopiesDir,
	}, all[len(all)-8:])
	must.True(t, slices.Index(all, "/data/deep/down/below") < len(all)-8)
	must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia0"}, runtimetest.DevicePaths(spec))
	must.Len(t, 1, spec.Hooks.Prestart) //nolint:staticcheck // see BindingHooks
	must.Eq(t, []string{"PATH=/bin", "LD_PRELOAD=/job/own.so", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)
}

func TestNew_Errors(t *testing.T) {
	claims := []Claim{claimOf("aaaaaaaa", runtimetest.GPU0, 0)}
	t.Run("hook missing", func(t *testing.T) {
		node := testNode(t)
		must.NoError(t, os.Remove(node.HookPath))
		_, err := New(t.Context(), node, claims)
		must.ErrorContains(t, err, node.HookPath)
		must.ErrorContains(t, err, "hook_path")
	})
	t.Run("hook not executable", func(t *testing.T) {
		node := testNode(t)
		must.NoError(t, os.Chmod(node.HookPath, 0o644))
		_, err := New(t.Context(), node, claims)
		must.ErrorContains(t, err, "not executable")
	})
	for name, spec := range map[string]*specs.Spec{
		"no spec": nil, "no process": {Linux: &specs.Linux{}}, "not Linux": {Process: &specs.Process{}},
	} {
		t.Run(name, func(t *testing.T) {
			edits, err := New(t.Context(), testNode(t), claims)
			must.NoError(t, err)
			must.Error(t, edits.Modify(spec))
		})
	}
}

// unlimitedClaim is a claim without a limit.
func unlimitedClaim(id, uuid string, index int, mode claim.Mode) Claim {
	made := claimOf(id, uuid, index)
	made.Mode, made.Unlimited = mode, true
	return made
}

func edited(t *testing.T, node Node, claims ...Claim) *specs.Spec {
	t.Helper()
	edits, err := New(t.Context(), node, claims)
	must.NoError(t, err)
	spec := runtimetest.ContainerSpec()
	spec.Process.Env = append(spec.Process.Env, "TRANCHE_CLAIM_aaaaaaaa=secret", "NVIDIA_VISIBLE_DEVICES=all")
	must.NoError(t, edits.Modify(spec))
	return spec
}

// Where nothing is limited, the container has its GPUs, the hooks that bind and check, and an environment without tokens,
// and nothing of what a limit takes.
//
//nolint:staticcheck // prestart, see BindingHooks
func TestNew_Unlimited(t *testing.T) {
	for _, mode := range []claim.Mode{claim.ModeExclusive, claim.ModeTimeslice, claim.ModeMIG} {
		t.Run(string(mode), func(t *testing.T) {
			spec := edited(t, testNode(t), unlimitedClaim("aaaaaaaa", runtimetest.GPU1, 1, mode))
			must.Eq(t, []string{"/dev/nvidiactl", "/dev/nvidia1"}, runtimetest.DevicePaths(spec))
			for _, at := range runtimetest.Destinations(spec) {
				must.StrNotContains(t, at, ".tranche")
			}
			driver := runtimetest.MountAt(t, spec, runtimetest.LibDir+"/libcuda.so.570.124.06")
			must.StrHasSuffix(t, runtimetest.LibDir+"/libcuda.so.570.124.06", driver.Source)
			must.StrNotHasSuffix(t, shadow.CUDA, driver.Source)
			must.Eq(t, []string{"PATH=/bin", "LD_PRELOAD=/job/own.so", "NVIDIA_VISIBLE_DEVICES=void"}, spec.Process.Env)

			must.Len(t, 1, spec.Hooks.Prestart)
			must.Len(t, 1, spec.Hooks.Poststop)
			must.SliceContainsSubset(t, spec.Hooks.Prestart[0].Args, []string{"prestart", "--claim", "aaaaaaaa"})
			must.Len(t, 1, spec.Hooks.CreateContainer)
			check := spec.Hooks.CreateContainer[0]
			must.Eq(t, []string{"--unlimited", "--gpu-node", "/dev/nvidiactl", "--gpu-node", "/dev/nvidia1"}, check.Args[8:])
			must.Eq(t, "createContainer", check.Args[1])
			must.Eq(t, append(hookEnv(), oneProcessor), check.Env)
		})
	}
}

// One claim with a limit has the shadow in front of all GPUs, and each has a region.
func TestNew_LimitedBesideUnlimited(t *testing.T) {
	spec := edited(t, testNode(t), unlimitedClaim("aaaaaaaa", runtimetest.GPU0, 0, claim.ModeExclusive), claimOf("bbbbbbbb", runtimetest.GPU1, 1))
	all := runtimetest.Destinations(spec)
	must.SliceContainsAll(t, all[len(all)-10:], []string{
		runtimetest.LibDir + "/.tranche/driver-libcuda.so", runtimetest.LibDir + "/libcuda.so.570.124.06",
		runtimetest.LibDir + "/.tranche/driver-libnvidia-ml.so", runtimetest.LibDir + "/libnvidia-ml.so.570.124.06",
		"/.tranche", "/.tranche/claims/aaaaaaaa", "/.tranche/claims/aaaaaaaa/usage",
		"/.tranche/claims/bbbbbbbb", "/.tranche/claims/bbbbbbbb/usage", shadow.CopiesDir,
	})
	must.SliceContains(t, spec.Hooks.CreateContainer[0].Args, "--shadow-dir")
	must.SliceNotContains(t, spec.Hooks.CreateContainer[0].Args, "--unlimited")
}

// A CDI spec of NVIDIA's has hooks, and may have no libcuda: what that means depends on whether there is a limit.
func TestNew_NVIDIAsHooks(t *testing.T) {
	const hooks = `"hooks": [
		{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "enable-cuda-compat"]},
		{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits"]}
	], "mounts": [`
	for name, tc := range map[string]struct {
		claim Claim
		kept  bool
	}{
		"limited": {claimOf("aaaaaaaa", runtimetest.GPU0, 0), false}, "unlimited": {unlimitedClaim("aaaaaaaa", runtimetest.GPU0, 0, claim.ModeExclusive), true},
	} {
		t.Run(name, func(t *testing.T) {
			node := testNode(t)
			runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, func(content string) string {
				return strings.Replace(content, `"mounts": [`, hooks, 1)
			})
			var kept []string
			for _, hook := range edited(t, node, tc.claim).Hooks.CreateContainer {
				if hook.Path == "/usr/bin/nvidia-cdi-hook" {
					kept = append(kept, hook.Args[1])
					must.Eq(t, hookEnv(), hook.Env)
				}
			}
			must.Eq(t, tc.kept, slices.Equal(kept, []string{cudaCompatHook}), must.Sprint(kept))

			runtimetest.WriteCDISpec(t, filepath.Join(node.DriverRoot, "etc/cdi/gpus.json"), node.DriverRoot, func(content string) string {
				return strings.ReplaceAll(content, "libcuda.so", "libelse.so")
			})
			runtimetest.WriteFile(t, filepath.Join(node.DriverRoot, runtimetest.LibDir, "libelse.so."+runtimetest.DriverVersion), "else")
			_, err := New(t.Context(), node, []Claim{tc.claim})
			must.Eq(t, tc.kept, err == nil, must.Sprintf("%v", err))
		})
	}
}

func TestRestricted_32BitWithoutALimit(t *testing.T) {
	for _, limited := range []bool{false, true} {
		edits := driverEdits(t)
		files, _, _ := arrived(t, restricted(edits, everyCapability, limited))
		must.Eq(t, !limited, slices.Contains(files, "32-bit libcuda.so."+runtimetest.DriverVersion), must.Sprint(files))
	}
}
