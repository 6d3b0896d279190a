package device

import (
	"errors"
	"maps"
	"time"

	"github.com/tranche-gpu/tranche/claim/health"
)

// tellHealth publishes which GPUs are not fit for work, and which claims are
// bypassed: the driver of the tasks that have claims on them tells these. Of a
// GPU that was not seen yet what was published before holds: the driver may be
// away since the plugin started.
func (n *node) tellHealth() {
	before := n.readHealth()
	unfit := make(map[string]health.Condition)
	maps.Copy(unfit, before.GPUs)
	for _, g := range n.inventory.list() {
		switch problem := g.unfit(); {
		case problem == "":
			delete(unfit, g.UUID)
		case unfit[g.UUID].Problem != problem:
			unfit[g.UUID] = health.Condition{Problem: problem, Since: n.now().UTC().Truncate(time.Second)}
		}
	}
	report := health.Report{GPUs: unfit, Bypassing: n.bypasses.lasting()}
	if n.published != nil && maps.Equal(before.GPUs, report.GPUs) && maps.Equal(before.Bypassing, report.Bypassing) {
		return
	}
	err := health.Write(n.runDir, report)
	if n.reported.changed("health", err) && err != nil {
		n.logger.Error("cannot publish which GPUs are fit for work and which claims are bypassed", "run_dir", n.runDir, "error", err)
	}
	if err == nil {
		n.published = &report
	}
}

// readHealth returns what was published last, by this plugin or an earlier one.
func (n *node) readHealth() health.Report {
	if n.published != nil {
		return *n.published
	}
	before, err := health.Read(n.runDir)
	if n.reported.changed("reading health", err) && err != nil {
		// What the error itself advises is for others: the plugin writes the file anew.
		n.logger.Warn("what was published of the GPUs' health cannot be read, and is written anew", "run_dir", n.runDir,
			"error", errors.Unwrap(err))
	}
	return before
}

// unfit is what tells against work on the GPU; empty if nothing does. That the GPU
// waits to be shared in another way is nothing to those who have it until then.
func (g *gpu) unfit() string {
	if g.answers && g.condition == "" && g.waits != "" {
		return ""
	}
	return g.problem
}
