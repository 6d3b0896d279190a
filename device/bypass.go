package device

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// bypassSettles is how long a claim has to be bypassed before it is published. A
// process that starts or ends may hold memory for a moment that it does not count
// yet, or no more.
const bypassSettles = 10 * time.Second

// bypass is a claim in whose container processes hold memory of its GPU, while no
// process counts what it takes in the claim's region: they load the driver past
// the shadow library.
type bypass struct {
	claim     *claim.Claim
	processes []nvml.Process
	since     time.Time
	// condition is what is published; nil if it has not lasted long enough yet.
	condition *health.Condition
}

// bypasses are the claims that are bypassed, by ID. They belong to the
// fingerprint.
type bypasses struct{ seen map[string]*bypass }

// begin drops the claims that are gone. What an earlier plugin process has
// published holds until it is looked at anew.
func (b *bypasses) begin(claims []*claim.Claim, published map[string]health.Condition) {
	before := b.seen
	b.seen = make(map[string]*bypass)
	for _, c := range claims {
		if was := before[c.ID]; was != nil {
			b.seen[c.ID] = was
		} else if condition, ok := published[c.ID]; ok && before == nil {
			b.seen[c.ID] = &bypass{claim: c, since: condition.Since, condition: &condition}
		}
	}
}

// take takes in which claims on a GPU are bypassed; nil is not known. It reports
// whether any has to last longer yet.
func (b *bypasses) take(n *node, g *gpu, found map[string]*bypass) (turning bool) {
	if found == nil {
		return false
	}
	maps.DeleteFunc(b.seen, func(id string, was *bypass) bool {
		return was.claim.PhysicalGPU() == g.UUID && found[id] == nil
	})
	for id, now := range found {
		was := b.seen[id]
		if was == nil {
			now.since = n.now()
			b.seen[id], was = now, now
		}
		if was.condition == nil && n.now().Sub(was.since) >= bypassSettles {
			was.condition = &health.Condition{Problem: now.String(), Since: was.since.UTC().Truncate(time.Second)}
			n.logger.Warn("a claim's limit is bypassed", "claim", id, "gpu", g.UUID, "what", was.condition.Problem)
		}
		turning = turning || was.condition == nil
	}
	return turning
}

// lasting is what is to be published.
func (b *bypasses) lasting() map[string]health.Condition {
	var all map[string]health.Condition
	for id, is := range b.seen {
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

// bypassedBy finds the claims that processes on a GPU bypass at this moment. A
// container with several claims on the GPU counts in all of them or in none.
func (n *node) bypassedBy(members *members, processes []nvml.Process) map[string]*bypass {
	found := make(map[string]*bypass)
	for _, p := range processes {
		if p.UsedBytes == 0 {
			continue
		}
		claims := members.claimsOf(p.PID)
		if slices.ContainsFunc(claims, n.counts) {
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

// counts reports whether a process counts what it takes in the claim's region, or
// may do so. One that has loaded the shadow library does from cuInit on, before it
// has a context.
func (n *node) counts(c *claim.Claim) bool {
	usage, err := n.ledger.UsageOf(c)
	return err != nil || usage.UsedBytes > 0 || len(usage.Processes) > 0
}

// String says which processes bypass the claim.
func (b *bypass) String() string {
	var names []string
	for _, p := range b.processes {
		names = append(names, fmt.Sprintf("process %d (%s)", p.PID, memsize.Format(p.UsedBytes)))
	}
	return fmt.Sprintf("GPU memory of %s is not counted, since the driver is used past the shadow library: stop the program, or have "+
		"it load libcuda.so.1 by that name", claim.ListNames(names))
}
