package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mps"
	"github.com/tranche-gpu/tranche/internal/size"
)

const (
	// unmanagedSettles is how long memory has to be used outside claims, or has to be free again, before slices change.
	unmanagedSettles = 10 * time.Second

	// unattributedBytes may be used without a process or a limit that accounts for it: a driver's own data.
	unattributedBytes = 256 << 20

	// maxNamedProcesses is how many processes a reason names.
	maxNamedProcesses = 5
)

// unmanagedUse finds the GPU memory that unmanaged processes use, and blocks free slices for it. It belongs to the
// fingerprint loop.
type unmanagedUse struct {
	driver    *share.Driver
	ledger    *share.Ledger
	clock     *share.Clock
	inventory *inventory
	daemons   *mps.Daemons
	logger    hclog.Logger
	log       share.ChangeLog

	// blocked are the slices that are blocked, by GPU.
	blocked  map[string]*blockedSlices
	bypasses bypasses
	// due fires when the GPUs are to be checked again; nil if no change is pending.
	due <-chan time.Time
}

// blockedSlices are the slices of a GPU whose memory unmanaged processes use.
type blockedSlices struct {
	count  int
	reason string
	// chosen are the slices that were blocked last.
	chosen map[string]bool
	// change is a change of count that has not lasted long enough yet; nil if there is none.
	change *blockedChange
}

type blockedChange struct {
	since time.Time
	count int
}

// observe records how many slices are to be blocked now. The smallest change that has lasted takes effect. It reports
// whether count has changed.
func (b *blockedSlices) observe(count int, reason string, now time.Time) (changed bool) {
	switch {
	case count == b.count:
		b.change = nil
		return false
	case b.change == nil || (b.change.count > b.count) != (count > b.count):
		b.change = &blockedChange{since: now, count: count}
	case count > b.count:
		b.change.count = min(b.change.count, count)
	default:
		b.change.count = max(b.change.count, count)
	}
	if now.Sub(b.change.since) < unmanagedSettles {
		return false
	}
	b.count, b.reason, b.change = b.change.count, reason, nil
	return true
}

// choose selects the free slices to block: those that were blocked before, and then the last ones.
func (b *blockedSlices) choose(g *share.GPU, used map[string]bool) {
	var before, others []string
	for number := g.SliceCount - 1; number >= 0; number-- {
		switch id := g.SliceID(number); {
		case used[id]:
		case b.chosen[id]:
			before = append(before, id)
		default:
			others = append(others, id)
		}
	}
	free := slices.Concat(before, others)
	b.chosen = make(map[string]bool)
	for _, id := range free[:min(b.count, len(free))] {
		b.chosen[id] = true
	}
}

// update checks the GPUs for memory that is used outside claims, and for claims that are bypassed. published are the
// bypassed claims that were published last.
func (u *unmanagedUse) update(ctx context.Context, published map[string]health.Condition) {
	claims, _, err := u.ledger.Recent(ctx)
	if err != nil {
		return // no process could be assigned to a claim
	}
	bounded, cancel := u.driver.Limit(ctx)
	defer cancel()
	u.bypasses.begin(claims, published)
	pending := false
	if u.blocked == nil {
		u.blocked = make(map[string]*blockedSlices)
	}
	for _, g := range u.inventory.list() {
		if !g.Answers || !g.Sliced() || g.MIG.Enabled {
			continue
		}
		b := u.blocked[g.UUID]
		if b == nil {
			b = &blockedSlices{}
			u.blocked[g.UUID] = b
		}
		found := u.on(bounded, &g, claims)
		if b.observe(found.slices(&g), found.String(), u.clock.Now()) {
			u.logger.Warn("GPU memory used outside claims has changed", "gpu", g.UUID, "name", g.GroupName(),
				"blocked_slices", b.count, "what", found.String())
		}
		pending = u.bypasses.observe(&g, found.bypassed) || b.change != nil || pending
	}
	switch {
	case !pending:
		u.due = nil
	case u.due == nil:
		u.due = u.clock.After(unmanagedSettles)
	}
}

// block adds the blocked slices to an occupancy.
func (u *unmanagedUse) block(o *share.Occupancy) {
	o.Deferrable.Blocked = make(map[string]string)
	for _, g := range u.inventory.list() {
		if b := u.blocked[g.UUID]; b != nil {
			b.choose(&g, o.Used)
			for id := range b.chosen {
				o.Deferrable.Blocked[id] = b.reason
			}
		}
	}
}

// unmanagedMemory is memory of a GPU that is used outside claims.
type unmanagedMemory struct {
	bytes     uint64
	processes []nvml.Process
	// bypassed are the claims whose containers use memory that is not counted, by ID; nil if NVML did not list processes.
	bypassed map[string]*bypass
}

// on returns the memory of a GPU that is used outside claims: by the processes that NVML lists, or, where it does not
// report the memory of each process, the memory in use that neither limits nor the driver account for.
func (u *unmanagedUse) on(ctx context.Context, g *share.GPU, claims []*claim.Claim) unmanagedMemory {
	var accountedBytes uint64
	var alive []*claim.Claim
	for _, c := range claims {
		if c.PhysicalGPU() == g.UUID && c.Container != nil && u.ledger.InUse(c) {
			alive = append(alive, c)
			accountedBytes += c.LimitBytes
		}
	}
	running, err := u.driver.Processes(ctx, g.UUID)
	if u.log.Changed("processes of "+g.UUID, err) && err != nil {
		u.logger.Debug("cannot list the processes of a GPU", "gpu", g.UUID, "error", err)
	}
	var found unmanagedMemory
	containers := processes.Of(alive)
	for _, p := range running {
		switch containers.Kind(p.PID) {
		case processes.Unmanaged:
			// The limits of its clients account for the memory of an MPS server: each counts a context of its own.
			if u.daemons.Serves(g, p.PID) {
				accountedBytes += p.UsedBytes
				continue
			}
			found.processes = append(found.processes, p)
			found.bytes += p.UsedBytes
		case processes.Own:
			accountedBytes += p.UsedBytes
		}
	}
	if err == nil {
		found.bypassed = u.bypasses.find(containers, running)
	}
	accountedBytes += g.ReservedBytes
	if g.UsedBytes > accountedBytes+found.bytes+unattributedBytes {
		found.bytes = g.UsedBytes - accountedBytes
	}
	return found
}

// slices returns how many of a GPU's slices have no memory left, whichever they are.
func (u unmanagedMemory) slices(g *share.GPU) int {
	left := g.UsableBytes() - min(u.bytes, g.UsableBytes())
	return max(0, g.SliceCount-int(left/g.SliceBytes))
}

// String says which processes use the memory.
func (u unmanagedMemory) String() string {
	text := size.Format(u.bytes) + " of GPU memory used outside claims"
	for i, p := range u.processes {
		switch i {
		case maxNamedProcesses:
			return fmt.Sprintf("%s, and %d more", text, len(u.processes)-i)
		case 0:
			text += ": process "
		default:
			text += ", process "
		}
		text += fmt.Sprint(p.PID)
		if p.UsedKnown {
			text += " (" + size.Format(p.UsedBytes) + ")"
		}
	}
	return text
}
