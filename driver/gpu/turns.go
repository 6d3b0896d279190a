package gpu

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/governor/status"
)

// outside is what the governor says of the processes of a claim that use the GPU outside of its turns: their names, their
// container, which is empty from an earlier version, and what follows.
type outside struct {
	names, container string
	follows          layout.Bypass
}

// String returns what an event says.
func (o outside) String() string {
	text := o.names + ": the program uses the driver past the shadow library and has to load libcuda.so.1 by that name"
	if o.follows == layout.BypassCharged {
		text += "; the claim is charged for the time that it takes"
	}
	return text
}

// notJoined returns what the governor says of such processes, by claim ID. Without a governor it is what was last known: nothing
// says that these processes have joined.
func (h *Health) notJoined() map[string]outside {
	published, err := status.Current(h.Claims.config.RunDir, time.Now())
	if err != nil {
		return h.outside
	}
	found := make(map[string]outside)
	for id, c := range published.Claims {
		var names []string
		for _, p := range c.NotJoined {
			names = append(names, fmt.Sprintf("process %d (%s)", p.PID, p.Name))
		}
		if len(names) > 0 {
			found[id] = outside{claim.ListNames(names), c.NotJoinedIn, c.Bypass}
		}
	}
	return found
}

// governorDir returns the directory of the governor's status, which has to be there to be watched.
func governorDir(runDir string) (string, error) {
	dir := filepath.Join(runDir, status.Dir)
	return dir, status.MakeDir(runDir)
}

// publishNotJoined emits an event if processes of a task use the GPU outside of its claim's turns, or no longer do, and ends the
// task for that if the operator wants it. It returns what is published then; empty is nothing.
func (h *Health) publishNotJoined(cfg *drivers.TaskConfig, c *claim.Claim, now outside, before string) string {
	annotations := map[string]string{"gpu": c.PhysicalGPU(), "claim": c.ID}
	if now.names == "" || now.container != "" && now.container != c.ContainerKey() {
		if before != "" {
			h.Notify(cfg, annotations, "the share of claim %s of the GPU's time holds for all processes of the task again", c.ID)
		}
		return ""
	}
	said := fmt.Sprintf("the share of claim %s of the GPU's time does not hold for %s", c.ID, now)
	if now.follows == layout.BypassEnds {
		const ended = " (ended)"
		if before != said+ended {
			h.Notify(cfg, annotations, "%s", said)
			h.end(cfg, annotations, `compute_bypass = "end"`)
		}
		return said + ended
	}
	if said != before {
		h.Notify(cfg, annotations, "%s", said)
	}
	return said
}
