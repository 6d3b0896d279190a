package runtime

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func TestGPUHostMemory(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		asked string
		max   uint64
		want  uint64
		err   string
	}{
		{"", 0, 0, ""},
		{"0", 0, 0, ""},
		{"4GiB", 4 * gib, 4 * gib, ""},
		{"4GiB", 8 * gib, 4 * gib, ""},
		{"4GiB", 0, 0, `option x = "4GiB": this node allows a container no host memory beyond its limit of GPU memory; ` +
			"the operator can allow more with gpu_host_memory_max"},
		{"4097MiB", 4 * gib, 0, "at most 4GiB of host memory beyond its limit"},
		{"4GB", 8 * gib, 0, "option x: 4GB is not a whole number of MiB"},
		{"lots", 0, 0, `option x: "lots" is not an amount`},
	} {
		got, err := GPUHostMemory("option x", tc.asked, tc.max)
		must.Eq(t, tc.want, got)
		if tc.err == "" {
			must.NoError(t, err)
		} else {
			must.ErrorContains(t, err, tc.err)
		}
	}
}

// The first of several claims has it, whatever they had before.
func TestPrepare_HostMemory(t *testing.T) {
	cfg := nodeConfig(t)
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir})
	must.NoError(t, err)
	var claims []*claim.Claim
	for index, uuid := range []string{runtimetest.GPU0, runtimetest.GPU1} {
		made, _, err := ledger.Reserve(t.Context(), claim.Request{
			GPU: claim.GPU{UUID: uuid, Index: index}, Slices: []string{uuid}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		})
		must.NoError(t, err)
		_, err = ledger.PrepareRegion(t.Context(), made.ID, "before", 1<<20)
		must.NoError(t, err)
		claims = append(claims, made)
	}
	for _, hostMemory := range []uint64{4 << 30, 0} {
		_, err = Prepare(t.Context(), ledger, cfg, "c1", claims, hostMemory)
		must.NoError(t, err)
		for i, want := range []uint64{hostMemory, 0} {
			header, err := region.ReadHeader(filepath.Join(cfg.RunDir, "claims", claims[i].ID))
			must.NoError(t, err)
			must.Eq(t, want, header.SpillBytes)
		}
	}
}
