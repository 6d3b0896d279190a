package device

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// Without a governor devices can be used all the same, and say why shares do not hold. GPUs without shares say nothing.
func TestFingerprint_NoGovernor(t *testing.T) {
	shared, other := nvmltest.H200(0), nvmltest.H200(1)
	p := newPlugin(t, nvmltest.New(shared, other), map[string]any{
		"compute": "shares", "slice_memory": "64GiB", "gpu": gpuBlocks(map[string]any{"gpu": "index:1", "compute": "driver"}),
	})
	p.node.Load().governed.keeper.Program = "/nonexistent/tranche"
	stream := fingerprint(t, p)
	for {
		groups := next(t, stream).Devices
		must.SliceLen(t, 2, groups)
		must.Eq(t, []string{"slice NVIDIA H200 #0: ++", "slice NVIDIA H200 #1: ++"}, lines(groups))
		must.Eq(t, "", groups[1].Devices[0].HealthDesc)
		if why := groups[0].Devices[0].HealthDesc; why != "" {
			must.True(t, strings.HasPrefix(why, "shares of compute do not hold: start /nonexistent/tranche: "), must.Sprint(why))
			return
		}
	}
}

// The governor goes by what the run directory says of programs that compute outside of their turns; only GPUs with shares have that.
func TestComputeBypass_Published(t *testing.T) {
	shared, other := nvmltest.H200(0), nvmltest.H200(1)
	p := newPlugin(t, nvmltest.New(shared, other), map[string]any{
		"compute": "shares", "compute_bypass": "end", "slice_memory": "64GiB",
		"gpu": gpuBlocks(map[string]any{"gpu": "index:1", "compute": "driver"}),
	})
	next(t, fingerprint(t, p))
	published, err := layout.Read(p.node.Load().runDir)
	must.NoError(t, err)
	must.Eq(t, layout.BypassEnds, published[shared.UUID].Bypass)
	must.Eq(t, "", published[other.UUID].Bypass)
}
