package gpu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

const testGPU = "GPU-11111111-1111-1111-1111-111111111111"

// Nomad tries again what may pass, and tells the user of the rest at once.
func TestPrepare_WhichErrorsPass(t *testing.T) {
	unknown, err := claim.ParseToken("0123456789abcdef0123456789abcdef")
	must.NoError(t, err)
	cases := []struct {
		name    string
		spoil   func(t *testing.T, c *Claims, env map[string]string, made *claim.Claim)
		want    string
		passing bool
	}{
		{"another container has it", func(t *testing.T, c *Claims, _ map[string]string, made *claim.Claim) {
			process := exec.Command("sleep", "1000")
			must.NoError(t, process.Start())
			t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
			must.NoError(t, c.ledger.Bind(t.Context(), made.ID, claim.Container{ID: "c0", InitPID: process.Process.Pid}))
		}, "still runs", true},
		{"the ledger cannot be read", func(t *testing.T, c *Claims, _ map[string]string, _ *claim.Claim) {
			claims := filepath.Join(c.config.StateDir, "claims")
			must.NoError(t, os.RemoveAll(claims))
			must.NoError(t, os.WriteFile(claims, nil, 0o600))
		}, "look up the task's claims", true},
		{"the region cannot be made", func(t *testing.T, c *Claims, _ map[string]string, _ *claim.Claim) {
			must.NoError(t, os.RemoveAll(c.config.RunDir))
			must.NoError(t, os.WriteFile(c.config.RunDir, nil, 0o600))
		}, "preparing the region", true},
		{"an unknown token", func(_ *testing.T, _ *Claims, env map[string]string, _ *claim.Claim) {
			clear(env)
			env[unknown.EnvName()] = unknown.Reveal()
		}, "no claim in the ledger", false},
		{"a bad variable", func(_ *testing.T, _ *Claims, env map[string]string, _ *claim.Claim) {
			env[claim.EnvPrefix+"x"] = "y"
		}, "holds no claim token", false},
		{"no driver", func(*testing.T, *Claims, map[string]string, *claim.Claim) {}, "driver", false},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			hook, err := os.Executable()
			must.NoError(t, err)
			c := New(runtime.Config{Node: edit.Node{
				StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"),
				HookPath: hook, ShadowDir: dir, DriverRoot: t.TempDir(),
			}}, hclog.NewNullLogger())
			_, err = c.open()
			must.NoError(t, err)
			claimtest.RemoveRegions(t, c.config.RunDir)
			made, token, err := c.ledger.Reserve(t.Context(), claim.Request{
				GPU: claim.GPU{UUID: testGPU}, Slices: []string{"s"},
				LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
			})
			must.NoError(t, err)
			env := map[string]string{token.EnvName(): token.Reveal()}
			tc.spoil(t, c, env, made)
			_, err = c.Prepare(t.Context(), &drivers.TaskConfig{DeviceEnv: env}, "c1", Options{})
			must.ErrorContains(t, err, tc.want)
			must.Eq(t, tc.passing, recoverable.Is(err), must.Sprint(err))
		})
	}
}

// What the hook has found the image to lack becomes an event of the task that holds the claim, and of no other.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	config := runtime.Config{Node: edit.Node{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}}
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	reserve := func(slice, lacks string) *claim.Claim {
		made, _, err := ledger.Reserve(t.Context(), claim.Request{
			GPU: claim.GPU{UUID: testGPU}, Slices: []string{testGPU + "/" + slice}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		})
		must.NoError(t, err)
		must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{
			Runtime: "runc", ID: slice, InitPID: os.Getpid(), Lacks: lacks,
		}))
		return made
	}
	musl, other, well := reserve("slice-000", "the image has musl"), reserve("slice-001", "another's"), reserve("slice-002", "")
	c := New(config, hclog.NewNullLogger())
	must.Eq(t, []string{"GPU: the image has musl"}, c.Missing(t.Context(), &Prepared{Claims: []*claim.Claim{musl, well}}))
	must.Eq(t, []string{"GPU: another's"}, c.Missing(t.Context(), &Prepared{Claims: []*claim.Claim{other}}))
	must.Eq(t, nil, c.Missing(t.Context(), &Prepared{Claims: []*claim.Claim{well}}))
	must.Eq(t, nil, (&Claims{}).Missing(t.Context(), &Prepared{}))
}

func TestPrepared_Describe(t *testing.T) {
	part := &claim.Claim{ID: "aaaaaaaa", GPU: claim.GPU{UUID: "GPU-1", Name: "NVIDIA H200"}, LimitBytes: 2 << 30, Slices: []string{"a", "b"}}
	whole := &claim.Claim{ID: "bbbbbbbb", GPU: claim.GPU{UUID: "GPU-0", Name: "NVIDIA H200"}, Mode: claim.ModeExclusive, Unlimited: true}
	shared := &claim.Claim{ID: "cccccccc", GPU: claim.GPU{UUID: "GPU-2", Index: 2, Name: "T4"}, Mode: claim.ModeTimeslice, Unlimited: true}
	p := &Prepared{Claims: []*claim.Claim{whole, part, shared}, HostMemoryBytes: 1 << 30}
	must.Eq(t, []string{
		"GPU: NVIDIA H200 #0 (GPU-0), all of it, claim bbbbbbbb",
		"GPU memory: 2GiB of NVIDIA H200 #0 (GPU-1), 2 slices, claim aaaaaaaa",
		"GPU: T4 #2 (GPU-2), shared with others and without a limit, claim cccccccc",
		"GPU memory beyond the limit of claim aaaaaaaa: 1GiB, on the host",
	}, p.Describe())
}

func TestPrepared_DescribeTwoBlocksOnOneGPU(t *testing.T) {
	on := func(id, uuid string, limitBytes uint64) *claim.Claim {
		return &claim.Claim{ID: id, GPU: claim.GPU{UUID: uuid, Name: "T4"}, LimitBytes: limitBytes, Slices: []string{id}}
	}
	p := &Prepared{Claims: []*claim.Claim{on("a", "GPU-0", 2<<30), on("b", "GPU-0", 3<<30), on("c", "GPU-1", 1<<30)}}
	lines := p.Describe()
	must.Len(t, 4, lines)
	must.Eq(t, "GPU memory: 2 device blocks are on T4 #0 (GPU-0): their limits add up to 5GiB, and each allocation must fit into one "+
		"of them", lines[3])
	whole := on("d", "GPU-0", 8<<30)
	whole.Mode, whole.Unlimited = claim.ModeExclusive, true
	must.Eq(t, lines[3:], (&Prepared{Claims: append([]*claim.Claim{whole}, p.Claims...)}).describeShared())
	p = &Prepared{Claims: p.Claims[1:]}
	must.Len(t, 2, p.Describe())
}

func TestCheckEnv_ForeignClaims(t *testing.T) {
	const name, token = "TRANCHE_CLAIM_0123abcd", "00112233445566778899aabbccddeeff"
	cases := []struct {
		name      string
		env       map[string]string
		deviceEnv map[string]string
		refused   bool
	}{
		{"none", map[string]string{"A": "b"}, nil, false},
		{"from the device plugin", map[string]string{name: token}, map[string]string{name: token}, false},
		{"from the env block", map[string]string{name: token}, nil, true},
		{"from the env block, over the device plugin's", map[string]string{name: token}, map[string]string{name: "other"}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := CheckEnv(&drivers.TaskConfig{Env: c.env, DeviceEnv: c.deviceEnv})
			if !c.refused {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, name)
			must.ErrorContains(t, err, "device block only")
			must.StrNotContains(t, err.Error(), token)
		})
	}
}

type modifierFunc func(*specs.Spec) error

func (f modifierFunc) Modify(s *specs.Spec) error { return f(s) }

func TestWithGPU(t *testing.T) {
	s := &specs.Spec{Process: &specs.Process{Env: []string{"A=b", "NVIDIA_VISIBLE_DEVICES=all", "TRANCHE_CLAIM_0123abcd=token"}}}
	must.NoError(t, (&Prepared{}).WithGPU()(t.Context(), nil, nil, s))
	must.Eq(t, []string{"A=b", claim.VisibleDevices + "=" + claim.NoDevices}, s.Process.Env)

	broken := &Prepared{Edits: modifierFunc(func(*specs.Spec) error { return errors.New("broken") })}
	must.ErrorContains(t, broken.WithGPU()(t.Context(), nil, nil, s), "broken")
}
