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

const (
	// uncountedSettles is how long memory has to be uncounted, or counted again. A process that starts or ends may for a
	// moment use memory that it does not count.
	uncountedSettles = 10 * time.Second

	// uncountedNoiseBytes may be uncounted in a container: contexts differ a little from the one that was measured.
	uncountedNoiseBytes = 16 << 20
)

// uncounted is a claim whose container's processes use more memory of its GPU, by NVML, than they count in its region.
type uncounted struct {
	claim *claim.Claim
	bytes settled[uint64]
	// condition is what is published; nil if there is nothing to publish.
	condition *health.Condition
}

// containerUse is what the processes of a container use of a GPU at one moment, and its claims there.
type containerUse struct {
	claims    []*claim.Claim
	heldBytes uint64
	processes []nvml.Process
}

// excess is the part of a claim in what its container uses of a GPU at one moment and does not count.
type excess struct {
	claim     *claim.Claim
	processes []nvml.Process
	bytes     uint64
}

// String says which processes use the memory.
func (e *excess) String() string {
	var names []string
	for _, p := range e.processes {
		names = append(names, fmt.Sprintf("process %d (%s)", p.PID, size.Format(p.UsedBytes)))
	}
	return fmt.Sprintf("%s of what %s use is not counted: either a program uses the driver past the shadow library and has to "+
		"load libcuda.so.1 by that name, or the driver takes memory by itself", size.Format(e.bytes), claim.ListNames(names))
}

// uncountedMemory finds the claims with uncounted memory, and takes that from their limits. It belongs to the fingerprint
// loop.
type uncountedMemory struct {
	ledger *share.Ledger
	clock  *share.Clock
	logger hclog.Logger
	// charges is whether it is taken from the limits, and ends whether tasks are ended for it.
	charges, ends bool

	// found are those claims by ID; nil before the first check.
	found map[string]*uncounted
}

// begin removes claims and containers that are gone. What an earlier plugin process has published remains until it is checked
// again, with what this one's configuration says of it.
func (u *uncountedMemory) begin(claims []*claim.Claim, published health.Report) {
	before := u.found
	u.found = make(map[string]*uncounted)
	for _, c := range claims {
		if was := before[c.ID]; was != nil && was.claim.ContainerKey() == c.ContainerKey() {
			u.found[c.ID] = was
		} else if condition, ok := published.Of(c); ok && before == nil {
			condition.End = u.ends
			is := &uncounted{claim: c, bytes: settled[uint64]{value: condition.Bytes}, condition: &condition}
			u.found[c.ID] = is
			u.charge(is)
		}
	}
}

// observe records what is uncounted on a GPU at this moment; nil if that is unknown. It reports whether any of it has to
// last longer before it takes effect.
func (u *uncountedMemory) observe(g *share.GPU, found map[string]*excess) (pending bool) {
	if found == nil {
		return false
	}
	for id, e := range found {
		if u.found[id] == nil {
			u.found[id] = &uncounted{claim: e.claim}
		}
	}
	maps.DeleteFunc(u.found, func(id string, is *uncounted) bool {
		if is.claim.PhysicalGPU() != g.UUID {
			return false
		}
		u.settle(is, found[id])
		pending = pending || is.bytes.change != nil
		return is.bytes == settled[uint64]{}
	})
	return pending
}

// settle records what is uncounted of a claim; nil is nothing.
func (u *uncountedMemory) settle(is *uncounted, now *excess) {
	var bytes uint64
	if now != nil {
		bytes = now.bytes
	}
	if !is.bytes.observe(bytes, u.clock.Now(), uncountedSettles) {
		return
	}
	switch {
	case is.bytes.value == 0:
		is.condition = nil
	case is.condition == nil:
		since := u.clock.Now().Add(-uncountedSettles).UTC().Truncate(time.Second)
		is.condition = &health.Condition{Problem: now.String(), Since: since, Bytes: is.bytes.value, End: u.ends,
			Container: is.claim.ContainerKey()}
	default:
		updated := *is.condition
		updated.Bytes = is.bytes.value
		is.condition = &updated
	}
	u.logger.Warn("uncounted memory of a claim has changed", "claim", is.claim.ID, "gpu", is.claim.PhysicalGPU(),
		"uncounted", size.Format(is.bytes.value))
	u.charge(is)
}

// charge takes what is uncounted of a claim from its limit, or nothing if the operator wants it only observed.
func (u *uncountedMemory) charge(is *uncounted) {
	var bytes uint64
	if u.charges {
		bytes = is.bytes.value
	}
	if is.claim.ByDriver() {
		if is.condition != nil {
			is.condition.ChargedBytes = bytes
		}
		return
	}
	if err := u.ledger.SetUncounted(is.claim, bytes); err != nil {
		u.logger.Error("cannot take uncounted memory from the limit of a claim", "claim", is.claim.ID, "error", err)
	}
}

// lasting returns the claims to publish.
func (u *uncountedMemory) lasting() map[string]health.Condition {
	var all map[string]health.Condition
	for id, is := range u.found {
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

// counted returns what the regions of claims account for, by ID. A region that cannot be read accounts for anything.
func (u *uncountedMemory) counted(claims []*claim.Claim) map[string]uint64 {
	all := make(map[string]uint64)
	for _, c := range claims {
		usage, err := u.ledger.UsageOf(c)
		if err != nil {
			all[c.ID] = 1 << 60
			continue
		}
		// NVML may report what processes share for each of them.
		all[c.ID] = usage.UsedBytes + usage.SharedBytes*uint64(max(0, len(usage.Processes)-1))
		if usage.Spill != nil {
			all[c.ID] += usage.Spill.UsedBytes // managed memory, which the driver moves
		}
	}
	return all
}

// find returns what the containers on a GPU use beyond what they count, by claim. counted is what their claims counted before the
// processes were listed: memory is counted before it is taken, and until it is given back.
func (u *uncountedMemory) find(
	containers *processes.Containers, running []nvml.Process, claims []*claim.Claim, counted map[string]uint64,
) map[string]*excess {
	byContainer := make(map[string]*containerUse)
	after := u.counted(claims)
	for _, p := range running {
		owners := containers.Claims(p.PID)
		if p.UsedBytes == 0 || len(owners) == 0 {
			continue
		}
		key := owners[0].ContainerKey()
		if byContainer[key] == nil {
			byContainer[key] = &containerUse{claims: slices.DeleteFunc(owners, func(c *claim.Claim) bool { return c.ContainerKey() != key })}
		}
		byContainer[key].heldBytes += p.UsedBytes
		byContainer[key].processes = append(byContainer[key].processes, p)
	}
	found := make(map[string]*excess)
	for _, use := range byContainer {
		var accounted uint64
		for _, c := range use.claims {
			accounted += max(counted[c.ID], after[c.ID])
		}
		if use.heldBytes > accounted+uncountedNoiseBytes {
			u.split(use, use.heldBytes-accounted, found)
		}
	}
	return found
}

// split charges the claims of a container for memory that none of them counts, in the order of the claims: each for what it has
// left, as far as possible what it is charged for already, and then up to its limit. What exceeds all limits goes to the last claim.
func (u *uncountedMemory) split(use *containerUse, bytes uint64, found map[string]*excess) {
	parts := make([]uint64, len(use.claims))
	upTo := func(most func(c *claim.Claim) uint64) {
		for i, c := range use.claims {
			more := min(bytes, most(c)-min(most(c), parts[i]))
			parts[i], bytes = parts[i]+more, bytes-more
		}
	}
	upTo(func(c *claim.Claim) uint64 { return min(u.charged(c), u.left(c)) })
	upTo(u.left)
	upTo(func(c *claim.Claim) uint64 { return c.LimitBytes })
	parts[len(parts)-1] += bytes
	for i, c := range use.claims {
		if parts[i] > 0 {
			found[c.ID] = &excess{claim: c, processes: use.processes, bytes: parts[i]}
		}
	}
}

// charged returns what a claim is charged for at present.
func (u *uncountedMemory) charged(c *claim.Claim) uint64 {
	if is := u.found[c.ID]; is != nil {
		return is.bytes.value
	}
	return 0
}

// left returns what of a claim's limit its programs do not count, whether or not they use it uncounted.
func (u *uncountedMemory) left(c *claim.Claim) uint64 {
	usage, err := u.ledger.UsageOf(c)
	if err != nil {
		return 0
	}
	return c.LimitBytes - min(c.LimitBytes, usage.UsedBytes)
}
