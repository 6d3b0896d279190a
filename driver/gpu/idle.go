package gpu

import (
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/idle"
)

// readIdle reads which claims have been idle for longer than the operator allows. If that is unreadable, it is as before.
func (h *Health) readIdle() {
	report, err := idle.Read(h.Claims.config.RunDir)
	if err != nil {
		h.Logger.Warn("tasks get no events of idle claims", "error", err)
		return
	}
	h.idle = report
}

// publishIdle emits an event if a claim of the task has been idle for too long, if that has other consequences than before, or if it
// is no longer so. It returns what is published then.
func (h *Health) publishIdle(cfg *drivers.TaskConfig, c *claim.Claim, before string) string {
	annotations := map[string]string{"gpu": c.PhysicalGPU(), "claim": c.ID}
	condition, found := h.idle.Of(c)
	if !found || condition.State == idle.Observed {
		if before != "" {
			h.Notify(cfg, annotations, "claim %s is no longer taken for idle: its GPU was used, or its use is not known", c.ID)
		}
		return ""
	}
	said := condition.String()
	if said != before {
		h.Notify(cfg, annotations, "claim %s is %s", c.ID, said)
	}
	return said
}
