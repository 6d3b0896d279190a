package device

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/size"
)

// bypassSettles is how long a claim has to be bypassed before it is published. A process that starts or ends may for a
// moment use memory that it does not count.
const bypassSettles = 10 * time.Second

// bypass is a claim in whose container processes use memory of its GPU, while no process counts its memory in the claim's
// region: they load the driver without the shadow library.
type bypass struct {
	claim     *claim.Claim
	processes []nvml.Process
	since     time.Time
	// condition is what is published; nil if it has not lasted long enough yet.
	condition *health.Condition
}

// String says which processes bypass the claim.
func (b *bypass) String() string {
	var names []string
	for _, p := range b.processes {
		names = append(names, fmt.Sprintf("process %d (%s)", p.PID, size.Format(p.UsedBytes)))
	}
	return fmt.Sprintf("GPU memory of %s is not counted, since the driver is used past the shadow library: stop the program, or have "+
		"it load libcuda.so.1 by that name", claim.ListNames(names))
}

// bypasses are the claims that are bypassed. It belongs to the fingerprint loop.
type bypasses struct {
	ledger *share.Ledger
	clock  *share.Clock
	logger hclog.Logger

	// found are the bypassed claims by ID; nil before the first check.
	found map[string]*bypass
}

// begin removes claims that are gone. What an earlier plugin process has published remains until it is checked again.
func (b *bypasses) begin(claims []*claim.Claim, published map[string]health.Condition) {
	before := b.found
	b.found = make(map[string]*bypass)
	for _, c := range claims {
		if was := before[c.ID]; was != nil {
			b.found[c.ID] = was
		} else if condition, ok := published[c.ID]; ok && before == nil {
			b.found[c.ID] = &bypass{claim: c, since: condition.Since, condition: &condition}
		}
	}
}

// observe records which claims on a GPU are bypassed; nil if that is unknown. It reports whether any is not published yet.
func (b *bypasses) observe(g *share.GPU, found map[string]*bypass) (pending bool) {
	if found == nil {
		return false
	}
	maps.DeleteFunc(b.found, func(id string, was *bypass) bool {
		return was.claim.PhysicalGPU() == g.UUID && found[id] == nil
	})
	for id, now := range found {
		was := b.found[id]
		if was == nil {
			now.since = b.clock.Now()
			b.found[id], was = now, now
		}
		if was.condition == nil && b.clock.Now().Sub(was.since) >= bypassSettles {
			was.condition = &health.Condition{Problem: now.String(), Since: was.since.UTC().Truncate(time.Second)}
			b.logger.Warn("a claim's limit is bypassed", "claim", id, "gpu", g.UUID, "what", was.condition.Problem)
		}
		pending = pending || was.condition == nil
	}
	return pending
}

// lasting returns the bypassed claims to publish.
func (b *bypasses) lasting() map[string]health.Condition {
	var all map[string]health.Condition
	for id, is := range b.found {
		if is.condition == nil {
			continue
		}
		if all == nil {
			all = make(map[string]health.Condition)
		}
		all[id] = *is.condition
	}
	return all
}

// find returns the claims that processes on a GPU bypass at this moment. A container with several claims on the GPU counts
// in all of them or in none.
func (b *bypasses) find(containers *processes.Containers, running []nvml.Process) map[string]*bypass {
	found := make(map[string]*bypass)
	for _, p := range running {
		if p.UsedBytes == 0 {
			continue
		}
		claims := containers.Claims(p.PID)
		if slices.ContainsFunc(claims, b.counted) {
			continue
		}
		for _, c := range claims {
			if found[c.ID] == nil {
				found[c.ID] = &bypass{claim: c}
			}
			found[c.ID].processes = append(found[c.ID].processes, p)
		}
	}
	return found
}

// counted reports whether a process counts its memory in the claim's region, or may do so. One that has loaded the shadow
// library does from cuInit on, before it has a context.
func (b *bypasses) counted(c *claim.Claim) bool {
	usage, err := b.ledger.UsageOf(c)
	return err != nil || usage.UsedBytes > 0 || len(usage.Processes) > 0
}
