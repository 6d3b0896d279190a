package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/status"
)

// notJoined returns what the governor says of the processes of each claim that use the GPU outside of its turns, by claim ID.
// Without a governor it is what was last known: nothing says that these processes have joined.
func (h *Health) notJoined() map[string]string {
	published, err := status.Current(h.Claims.config.RunDir, time.Now())
	if err != nil {
		return h.outside
	}
	found := make(map[string]string)
	for id, c := range published.Claims {
		var names []string
		for _, p := range c.NotJoined {
			names = append(names, fmt.Sprintf("process %d (%s)", p.PID, p.Name))
		}
		if len(names) > 0 {
			found[id] = claim.ListNames(names)
		}
	}
	return found
}

// governorDir returns the directory of the governor's status, which has to be there to be watched.
func governorDir(runDir string) (string, error) {
	dir := filepath.Join(runDir, status.Dir)
	return dir, os.MkdirAll(dir, 0o755)
}

// publishNotJoined emits an event if processes of a task use the GPU outside of its claim's turns, or no longer do; an empty text
// is none. It returns what is published then.
func (h *Health) publishNotJoined(cfg *drivers.TaskConfig, c *claim.Claim, outside, before string) string {
	annotations := map[string]string{"gpu": c.PhysicalGPU(), "claim": c.ID}
	switch {
	case outside != "" && outside != before:
		h.Notify(cfg, annotations, "the share of claim %s of the GPU's time does not hold for %s: the program uses the driver past the "+
			"shadow library and has to load libcuda.so.1 by that name", c.ID, outside)
	case outside == "" && before != "":
		h.Notify(cfg, annotations, "the share of claim %s of the GPU's time holds for all processes of the task again", c.ID)
	}
	return outside
}
