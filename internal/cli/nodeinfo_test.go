package cli

import (
	"context"
	"errors"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

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
