package device

import (
	"maps"

	"github.com/tranche-gpu/tranche/claim/layout"
)

// tellLayout writes down how the GPUs are shared, for those on this node that
// make claims without Nomad: they may have slices only where there are some.
func (n *node) tellLayout() {
	shared := make(map[string]layout.GPU)
	for _, g := range n.inventory.list() {
		shared[g.UUID] = layout.GPU{Mode: g.mode, SliceBytes: g.sliceBytes}
	}
	if n.told != nil && maps.Equal(n.told, shared) {
		return
	}
	err := layout.Write(n.runDir, shared)
	if n.reported.changed("layout", err) && err != nil {
		n.logger.Error("cannot tell others on this node how the GPUs are shared", "run_dir", n.runDir, "error", err)
	}
	if err == nil {
		n.told = shared
	}
}
