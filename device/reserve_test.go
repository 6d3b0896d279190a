package device

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// startInit starts a process that can be a container's first, and returns how
// to end it.
func startInit(t *testing.T) (pid int, end func()) {
	t.Helper()
	init := exec.Command("sleep", "1000")
	must.NoError(t, init.Start())
	end = sync.OnceFunc(func() {
		_ = init.Process.Kill()
		_ = init.Wait()
	})
	t.Cleanup(end)
	return init.Process.Pid, end
}

// tokenOf returns the one claim token among a reservation's variables.
func tokenOf(t *testing.T, env map[string]string) claim.Token {
	t.Helper()
	var tokens []string
	for name, value := range env {
		if strings.HasPrefix(name, claim.EnvPrefix) {
			tokens = append(tokens, value)
		}
	}
	must.Len(t, 1, tokens)
	token, err := claim.ParseToken(tokens[0])
	must.NoError(t, err)
	return token
}

func TestReserve(t *testing.T) {
	g := nvmltest.H200(1)
	log := &strings.Builder{}
	p := New(hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Trace}), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return nvmltest.New(nvmltest.H200(0), g) }
	must.NoError(t, p.SetConfig(pluginConfig(t, testOptions(t, nil))))

	// Nothing was fingerprinted yet, as after a restart of the plugin.
	reservation, err := p.Reserve(sliceIDs(g, 7, 3, 2, 0, 1, 4, 6, 5))
	must.NoError(t, err)
	must.SliceEmpty(t, reservation.Mounts)
	must.SliceEmpty(t, reservation.Devices)
	must.MapLen(t, 2, reservation.Envs)
	must.Eq(t, "void", reservation.Envs["NVIDIA_VISIBLE_DEVICES"])

	token := tokenOf(t, reservation.Envs)
	must.Eq(t, token.Reveal(), reservation.Envs[token.EnvName()])
	must.StrNotContains(t, log.String(), token.Reveal(), must.Sprint("a claim token was logged"))

	made, err := p.node.Load().ledger.Lookup(t.Context(), token)
	must.NoError(t, err)
	must.Eq(t, claim.GPU{UUID: g.UUID, Index: 1, Name: "NVIDIA H200", ContextBytes: 300 * mebi}, made.GPU)
	must.Eq(t, sliceIDs(g, 0, 1, 2, 3, 4, 5, 6, 7), made.Slices)
	must.Eq(t, 8<<30, made.LimitBytes)
	must.Eq(t, "nomad", made.Owner)
	must.Nil(t, made.Container)
}

// Two device blocks of one task are two reservations whose variables are merged.
func TestReserve_twoClaims(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	p := newPlugin(t, nvmltest.New(a, b), nil)
	first, err := p.Reserve(sliceIDs(a, 0))
	must.NoError(t, err)
	second, err := p.Reserve(sliceIDs(b, 0))
	must.NoError(t, err)
	must.NotEq(t, tokenOf(t, first.Envs).EnvName(), tokenOf(t, second.Envs).EnvName())
}

func TestReserve_badInput(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	foreign := nvmltest.H200(7)
	gpus := "; the GPUs are: NVIDIA H200 #0 (" + a.UUID + "), NVIDIA H200 #1 (" + b.UUID + "). " +
		"If a GPU, its mode, slice_memory or ignored_gpu_ids was changed, stop the job and run it again"
	unknown := func(ids ...string) string {
		return `not devices of this node's GPUs: "` + strings.Join(ids, `", "`) + `"` + gpus
	}
	cases := []struct {
		name    string
		options map[string]any
		ids     []string
		want    string
	}{
		{name: "none", want: "the reservation names no devices"},
		{name: "no slice at all", ids: []string{"x", ""}, want: unknown("x", "")},
		{name: "whole GPU", ids: []string{a.UUID}, want: unknown(a.UUID)},
		{name: "other spelling", ids: []string{a.UUID + "/slice-7"}, want: unknown(a.UUID + "/slice-7")},
		{name: "negative", ids: []string{a.UUID + "/slice--01"}, want: unknown(a.UUID + "/slice--01")},
		{name: "GPU of another node", ids: append(sliceIDs(a, 0), sliceIDs(foreign, 0)...), want: unknown(sliceIDs(foreign, 0)[0])},
		{name: "beyond the last", ids: sliceIDs(a, 139, 140), want: unknown(sliceIDs(a, 140)[0])},
		{
			name: "twice", ids: sliceIDs(a, 1, 2, 1, 1),
			want: `the reservation names devices more than once: "` + sliceIDs(a, 1)[0] + `"`,
		},
		{
			name: "two GPUs", ids: append(sliceIDs(a, 1), sliceIDs(b, 2)...),
			want: "the reservation names slices of 2 GPUs: " + sliceIDs(a, 1)[0] + ", " + sliceIDs(b, 2)[0] +
				" (GPUs " + a.UUID + ", " + b.UUID + "); a claim is on one GPU, so ask for each GPU in a device block of its own",
		},
		{
			name: "less than a context", options: map[string]any{"slice_memory": "128MiB"}, ids: sliceIDs(a, 0, 1),
			want: "2 slices of 128MiB make a limit of 256MiB, but a CUDA context on the GPU NVIDIA H200 #0 (" + a.UUID +
				") takes 300MiB before the first allocation: ask for at least 3 slices",
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			p := newPlugin(t, nvmltest.New(a, b), tc.options)
			_, err := p.Reserve(tc.ids)
			must.EqError(t, err, tc.want)
			must.Eq(t, codes.FailedPrecondition, status.Code(err))
			claims, _, err := p.node.Load().ledger.List(t.Context())
			must.NoError(t, err)
			must.SliceEmpty(t, claims)
		})
	}
}

func TestReserve_noDriver(t *testing.T) {
	g := nvmltest.H200(0)
	fake := nvmltest.New(g)
	fake.SetError(errors.New("driver not loaded"))
	_, err := newPlugin(t, fake, nil).Reserve(sliceIDs(g, 0))
	must.EqError(t, err, `find the GPUs of the devices "`+sliceIDs(g, 0)[0]+`": driver not loaded`)
}

func TestReserve_justEnoughForAContext(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"slice_memory": "100MiB"})
	_, err := p.Reserve(sliceIDs(g, 0, 1, 2))
	must.NoError(t, err)
}

// A refusal does not repeat a long ID.
func TestReserve_LongID(t *testing.T) {
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0)), nil)
	_, err := p.Reserve([]string{strings.Repeat("x", 100_000)})
	must.ErrorContains(t, err, `not devices of this node's GPUs: "xxx`)
	must.Less(t, 1000, len(err.Error()))
}

// A slice that a living container has is refused until that container is gone.
func TestReserve_held(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), nil)
	ledger := p.node.Load().ledger
	first, err := p.Reserve(sliceIDs(g, 0, 1))
	must.NoError(t, err)
	older, err := ledger.Lookup(t.Context(), tokenOf(t, first.Envs))
	must.NoError(t, err)

	pid, end := startInit(t)
	must.NoError(t, ledger.Bind(t.Context(), older.ID, claim.Container{Runtime: "test", ID: "c1", InitPID: pid}))

	_, err = p.Reserve(sliceIDs(g, 1, 2))
	var held *claim.HeldError
	must.True(t, errors.As(err, &held))
	must.StrContains(t, err.Error(), older.ID)
	must.StrContains(t, err.Error(), "c1")
	must.StrHasSuffix(t, "; nothing was changed, and the reservation can be retried", err.Error())
	must.Eq(t, codes.Aborted, status.Code(err))
	must.StrNotContains(t, err.Error(), tokenOf(t, first.Envs).Reveal())
	_, err = ledger.Lookup(t.Context(), tokenOf(t, first.Envs))
	must.NoError(t, err, must.Sprint("the claim of a living container was taken away"))

	end()
	second, err := p.Reserve(sliceIDs(g, 1, 2))
	must.NoError(t, err)
	_, err = ledger.Lookup(t.Context(), tokenOf(t, first.Envs))
	must.ErrorIs(t, err, claim.ErrUnknownToken)
	_, err = ledger.Lookup(t.Context(), tokenOf(t, second.Envs))
	must.NoError(t, err)
}

// A ledger that can't be written refuses the reservation, and names itself.
func TestReserve_noLedger(t *testing.T) {
	file := t.TempDir() + "/file"
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"state_dir": file + "/state"})
	_, err := p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, file)
}

// The fingerprint releases what nobody reported as gone.
func TestFingerprint_ReleasesEndedClaims(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), nil)
	ledger := p.node.Load().ledger
	reservation, err := p.Reserve(sliceIDs(g, 0))
	must.NoError(t, err)
	made, err := ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	pid, end := startInit(t)
	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c1", InitPID: pid}))
	end()

	stream := fingerprint(t, p)
	next(t, stream)
	made, err = ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	must.False(t, made.Released.IsZero())
}

// However many devices Nomad names, the refusal fits on a screen.
func TestReserve_refusalIsShort(t *testing.T) {
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0)), nil)
	var unknown []string
	for i := range 2000 {
		unknown = append(unknown, sliceIDs(nvmltest.H200(7), i)...)
	}
	_, err := p.Reserve(unknown)
	must.ErrorContains(t, err, "and 1992 more; the GPUs are")
	must.Less(t, 1500, len(err.Error()))
	_, err = p.Reserve(append(unknown, unknown...))
	must.ErrorContains(t, err, "more than once")
	must.Less(t, 1500, len(err.Error()))
}
