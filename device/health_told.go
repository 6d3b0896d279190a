package device

import (
	"maps"
	"time"

	"tranche.dev/tranche/claim/health"
)

// tellHealth writes down which GPUs are not fit for work: the driver of the tasks
// that have claims on them tells these. Of a GPU that was not seen yet what was
// written down before holds: the driver may be away since the plugin started.
func (n *node) tellHealth() {
	before := n.unfit
	if before == nil {
		var err error
		if before, err = health.Read(n.runDir); err != nil {
			n.logger.Warn("what was known of the GPUs' health cannot be read, and is written anew", "error", err)
		}
	}
	unfit := make(map[string]health.Condition)
	maps.Copy(unfit, before)
	for _, g := range n.inventory.list() {
		switch problem := g.unfit(); {
		case problem == "":
			delete(unfit, g.UUID)
		case unfit[g.UUID].Problem != problem:
			unfit[g.UUID] = health.Condition{Problem: problem, Since: n.now().UTC().Truncate(time.Second)}
		}
	}
	if n.unfit != nil && maps.Equal(n.unfit, unfit) {
		return
	}
	err := health.Write(n.runDir, unfit)
	if n.reported.changed("health", err) && err != nil {
		n.logger.Error("cannot tell others on this node which GPUs are fit for work", "run_dir", n.runDir, "error", err)
	}
	if err == nil {
		n.unfit = unfit
	}
}

// unfit is what tells against work on the GPU; empty if nothing does. That the GPU
// waits to be shared in another way is nothing to those who have it until then.
func (g *gpu) unfit() string {
	if g.answers && g.condition == "" && g.waits != "" {
		return ""
	}
	return g.problem
}
