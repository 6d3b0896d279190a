package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// MIG instances can be requested where the device plugin does not have their GPU; where it does, those that it shares.
func TestInventory_MIG(t *testing.T) {
	g := withInstances(nvmltest.H200(0))
	a := testApp(nvmltest.New(g, nvmltest.H200(1)))
	for name, tc := range map[string]struct {
		shared map[string]layout.GPU
		want   []string
	}{
		"no plugin":           {nil, []string{"MIG-a", "MIG-b", nvmltest.H200(1).UUID}},
		"of another GPU":      {map[string]layout.GPU{nvmltest.H200(1).UUID: {}}, []string{"MIG-a", "MIG-b", nvmltest.H200(1).UUID}},
		"one task each":       {map[string]layout.GPU{g.UUID: {Mode: claim.ModeMIG}}, []string{nvmltest.H200(1).UUID}},
		"one of them, shared": {map[string]layout.GPU{g.UUID: {Mode: claim.ModeMIG}, "MIG-b": {}}, []string{"MIG-b", nvmltest.H200(1).UUID}},
	} {
		t.Run(name, func(t *testing.T) {
			runDir := t.TempDir()
			if tc.shared != nil {
				must.NoError(t, layout.Write(runDir, tc.shared))
			}
			gpus, _, err := a.inventory(t.Context(), place{runDir: runDir})
			must.NoError(t, err)
			var uuids []string
			for _, found := range gpus {
				uuids = append(uuids, found.UUID)
				must.Eq(t, strings.HasPrefix(found.UUID, "MIG-"), found.MIGParent == g.UUID)
			}
			must.Eq(t, tc.want, uuids)
		})
	}
}

// A GPU that does not answer, or on which no context can be made, keeps no container from the others.
func TestInventory_GPUsThatDoNotAnswer(t *testing.T) {
	fake := nvmltest.New(nvmltest.H200(0), nvmltest.H200(1))
	fake.SetFailed(nvml.Failure{Index: 2, Err: errors.New("GPU is lost")})
	full := errors.New("CUDA_ERROR_OUT_OF_MEMORY")
	broken := map[string]bool{nvmltest.H200(1).UUID: true}
	a := testApp(fake)
	a.contextCost = func(_ context.Context, _ contextcost.Options, gpu contextcost.GPU) (uint64, error) {
		if broken[gpu.UUID] {
			return 0, full
		}
		return testContextBytes, nil
	}
	gpus, unanswered, err := a.inventory(t.Context(), place{})
	must.NoError(t, err)
	must.Len(t, 1, gpus)
	must.Eq(t, nvmltest.H200(0).UUID, gpus[0].UUID)
	must.Eq(t, []gpuinfo.Unanswered{{Index: 2, Error: "GPU is lost"}, {Index: 1, Error: full.Error()}}, unanswered)

	broken[nvmltest.H200(0).UUID] = true
	_, _, err = a.inventory(t.Context(), place{})
	must.ErrorIs(t, err, full)
}
