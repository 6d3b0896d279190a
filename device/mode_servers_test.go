package device

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// On the GPUs of go-nvml's own servers each mode offers what it is to, side by side, and one of each makes a claim on that
// GPU and no other.
func TestModes_Servers(t *testing.T) {
	for name, tc := range map[string]struct {
		server  *server.Server
		model   string
		profile string
		slices  int // of 16 GiB
	}{
		"A100": {dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", "3g.20gb", 2},
		"H100": {dgxh100.New(), "NVIDIA H100 80GB HBM3", "3g.40gb", 5},
		"H200": {dgxh200.New(), "NVIDIA H200 141GB HBM3e", "7g.141gb", 8},
		"B200": {dgxb200.New(), "NVIDIA B200 180GB HBM3e", "3g.90gb", 11},
	} {
		t.Run(name, func(t *testing.T) {
			library := onServer(t, tc.server)
			p := newPlugin(t, library, map[string]any{"slice_memory": "16GiB", "gpu": gpuBlocks(
				map[string]any{"gpu": "index:0", "mode": "exclusive"},
				map[string]any{"gpu": "index:1", "mode": "timeslice", "replicas": 3},
				migBlock("index:2", tc.profile),
			)})
			groups := next(t, fingerprint(t, p)).Devices
			must.Eq(t, []string{
				"gpu " + tc.model + ": +", "timeslice " + tc.model + " #1: +++", "gpu " + tc.model + " MIG " + tc.profile + ": +",
			}, lines(groups)[:3])
			must.Len(t, 3+5, groups)
			for _, group := range groups[3:] {
				must.Len(t, tc.slices, group.Devices)
			}

			node, err := library.Read(t.Context())
			must.NoError(t, err)
			for i, mode := range []claim.Mode{claim.ModeExclusive, claim.ModeTimeslice, claim.ModeMIG, claim.ModeSlice} {
				device := groups[i].Devices[0].ID
				reservation, err := p.Reserve([]string{device})
				must.NoError(t, err)
				token := tokenOf(t, reservation.Envs)
				made, err := p.node.Load().ledger.Lookup(t.Context(), token)
				must.NoError(t, err)
				must.Eq(t, mode, made.Mode)
				must.Eq(t, node.GPUs[i].UUID, made.PhysicalGPU())
				must.Eq(t, []string{device}, made.Slices)
				must.Eq(t, mode == claim.ModeSlice, made.Limited())
			}
			must.Len(t, 4, claimsOf(t, p))
		})
	}
}
