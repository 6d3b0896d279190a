package device

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/device/share/mps"
	"github.com/tranche-gpu/tranche/internal/changelog"
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
	log       changelog.Log

	// blocked are the slices that are blocked, by GPU.
	blocked   map[string]*blockedSlices
	uncounted uncountedMemory
	// due fires when the GPUs are to be checked again; nil if no change is pending.
	due <-chan time.Time
}

// blockedSlices are the slices of a GPU whose memory unmanaged processes use.
type blockedSlices struct {
	count  settled[int]
	reason string
	// chosen are the slices that were blocked last.
	chosen map[string]bool
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
	for _, id := range free[:min(b.count.value, len(free))] {
		b.chosen[id] = true
	}
}

// update checks the GPUs for memory that is used outside claims, and for memory of claims that is not counted. published is
// what was published last of such claims.
func (u *unmanagedUse) update(ctx context.Context, published health.Report) {
	claims, _, err := u.ledger.Recent(ctx)
	if err != nil {
		return // no process could be assigned to a claim
	}
	bounded, cancel := u.driver.Limit(ctx)
	defer cancel()
	u.uncounted.begin(claims, published)
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
		if b.count.observe(found.slices(&g), u.clock.Now(), unmanagedSettles) {
			b.reason = found.String()
			u.logger.Warn("GPU memory used outside claims has changed", "gpu", g.UUID, "name", g.GroupName(),
				"blocked_slices", b.count.value, "what", b.reason)
		}
		pending = u.uncounted.observe(&g, found.uncounted) || b.count.change != nil || pending
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
	// uncounted is what containers use beyond what they count, by claim; nil if NVML did not list processes.
	uncounted map[string]*excess
}

// on returns the memory of a GPU that is used outside claims: by the processes that NVML lists, or, where it does not
// report the memory of each process, the memory in use that neither limits nor the driver account for.
func (u *unmanagedUse) on(ctx context.Context, g *share.GPU, claims []*claim.Claim) unmanagedMemory {
	var accountedBytes uint64
	var alive []*claim.Claim
	for _, c := range claims {
		if c.PhysicalGPU() == g.UUID && u.ledger.Runs(c) {
			alive = append(alive, c)
			accountedBytes += c.LimitBytes
		}
	}
	// As the shadow library uses them, see intercept/region/claims.h.
	slices.SortFunc(alive, func(x, y *claim.Claim) int { return strings.Compare(x.ID, y.ID) })
	counted := u.uncounted.counted(alive)
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
		found.uncounted = u.uncounted.find(containers, running, alive, counted)
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
