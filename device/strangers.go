package device

import (
	"context"
	"fmt"
	"slices"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/memsize"
	"github.com/tranche-gpu/tranche/device/nvml"
)

const (
	// strangersSettle is how long processes outside of claims have to hold memory,
	// or to have given it back, before slices go by it.
	strangersSettle = 10 * time.Second

	// unexplained is memory that nobody has to answer for: a driver's bookkeeping.
	unexplained = 256 << 20

	// namedStrangers is how many processes a reason names.
	namedStrangers = 5
)

// strangers are what processes outside of any claim hold of the GPUs, by UUID.
// They belong to the fingerprint.
type strangers struct {
	gpus map[string]*withheld
	// due fires when it is to be looked again; nil if nothing changes.
	due <-chan time.Time
}

// withheld are the slices of a GPU that cannot be had because of strangers.
type withheld struct {
	count  int
	reason string
	// chosen are the slices that stood for them last.
	chosen map[string]bool
	// turn is a change that has not lasted long enough yet.
	turn *turn
}

// turn is a change of how many slices cannot be had.
type turn struct {
	since time.Time
	count int
}

// take takes in how many slices cannot be had by now. What they go by is the
// least change that lasted. It reports whether that has changed.
func (w *withheld) take(count int, reason string, now time.Time) (changed bool) {
	switch {
	case count == w.count:
		w.turn = nil
		return false
	case w.turn == nil || (w.turn.count > w.count) != (count > w.count):
		w.turn = &turn{since: now, count: count}
	case count > w.count:
		w.turn.count = min(w.turn.count, count)
	default:
		w.turn.count = max(w.turn.count, count)
	}
	if now.Sub(w.turn.since) < strangersSettle {
		return false
	}
	w.count, w.reason, w.turn = w.turn.count, reason, nil
	return true
}

// lookForStrangers finds what processes outside of any claim hold of the GPUs.
func (n *node) lookForStrangers(ctx context.Context) {
	claims, _, err := n.ledger.Recent(ctx)
	if err != nil {
		return // everybody would be a stranger
	}
	bounded, cancel := context.WithTimeout(ctx, n.nvmlTimeout)
	defer cancel()
	n.bypasses.begin(claims, n.readHealth().Bypassing)
	turning := false
	if n.strangers.gpus == nil {
		n.strangers.gpus = make(map[string]*withheld)
	}
	for _, g := range n.inventory.list() {
		if !g.answers || !g.sliced() || g.MIG.Enabled {
			continue
		}
		w := n.strangers.gpus[g.UUID]
		if w == nil {
			w = &withheld{}
			n.strangers.gpus[g.UUID] = w
		}
		found := n.strangersOn(bounded, &g, claims)
		if w.take(found.slices(&g), found.String(), n.now()) {
			log := n.logger.With("gpu", g.UUID, "name", g.groupName(), "slices_that_cannot_be_had", w.count)
			log.Warn("what is held of a GPU's memory outside of any claim has changed", "what", found.String())
		}
		turning = n.bypasses.take(n, &g, found.bypassed) || w.turn != nil || turning
	}
	switch {
	case !turning:
		n.strangers.due = nil
	case n.strangers.due == nil:
		n.strangers.due = n.after(strangersSettle)
	}
}

// outside is memory of a GPU that is held outside of any claim.
type outside struct {
	bytes     uint64
	processes []nvml.Process
	// bypassed are the claims whose containers hold memory that nobody counts, by
	// ID; nil if NVML did not say.
	bypassed map[string]*bypass
}

// strangersOn finds what is held of a GPU outside of any claim: what NVML says
// of processes, or where it does not say of each, what of the memory in use
// neither limits nor the driver answer for.
func (n *node) strangersOn(ctx context.Context, g *gpu, claims []*claim.Claim) outside {
	var covered uint64
	var living []*claim.Claim
	for _, c := range claims {
		if c.PhysicalGPU() == g.UUID && c.Container != nil && n.holds(c) {
			living = append(living, c)
			covered += c.LimitBytes
		}
	}
	processes, err := n.nvml.Processes(ctx, g.UUID)
	if n.reported.changed("processes of "+g.UUID, err) && err != nil {
		n.logger.Debug("cannot list the processes of a GPU", "gpu", g.UUID, "error", err)
	}
	var found outside
	members := membersOf(living)
	for _, p := range processes {
		switch members.of(p.PID) {
		case stranger:
			// What an MPS server takes for all its clients, their limits answer for: each counts a context of its own.
			if g.mode == claim.ModeMPS && n.mps.keeper.Has(g.UUID, p.PID) {
				covered += p.UsedBytes
				continue
			}
			found.processes = append(found.processes, p)
			found.bytes += p.UsedBytes
		case own:
			covered += p.UsedBytes
		}
	}
	if err == nil {
		found.bypassed = n.bypassedBy(members, processes)
	}
	covered += g.ReservedBytes
	if g.UsedBytes > covered+found.bytes+unexplained {
		found.bytes = g.UsedBytes - covered
	}
	return found
}

// slices is how many of a GPU's slices cannot be had, however the others are
// given out.
func (o outside) slices(g *gpu) int {
	left := g.UsableBytes() - min(o.bytes, g.UsableBytes())
	return max(0, g.slices-int(left/g.sliceBytes))
}

// String says who holds the memory.
func (o outside) String() string {
	text := memsize.Format(o.bytes) + " of the GPU's memory are held outside of any claim"
	for i, p := range o.processes {
		switch i {
		case namedStrangers:
			return fmt.Sprintf("%s, and %d more", text, len(o.processes)-i)
		case 0:
			text += ": process "
		default:
			text += ", process "
		}
		text += fmt.Sprint(p.PID)
		if p.UsedKnown {
			text += " (" + memsize.Format(p.UsedBytes) + ")"
		}
	}
	return text
}

// withheldSlices are the slices that cannot be had, with the reason.
func (n *node) withheldSlices(taken *taken) map[string]string {
	reasons := make(map[string]string)
	for _, g := range n.inventory.list() {
		if w := n.strangers.gpus[g.UUID]; w != nil {
			w.choose(&g, taken.used)
			for id := range w.chosen {
				reasons[id] = w.reason
			}
		}
	}
	return reasons
}

// choose lets free slices stand for those that cannot be had: those that did
// before, and then the last ones.
func (w *withheld) choose(g *gpu, used map[string]bool) {
	var before, others []string
	for number := g.slices - 1; number >= 0; number-- {
		switch id := g.sliceID(number); {
		case used[id]:
		case w.chosen[id]:
			before = append(before, id)
		default:
			others = append(others, id)
		}
	}
	free := slices.Concat(before, others)
	w.chosen = make(map[string]bool)
	for _, id := range free[:min(w.count, len(free))] {
		w.chosen[id] = true
	}
}

// setWithheld says on free slices of a group that they cannot be had.
func (t *taken) setWithheld(group *ndevice.DeviceGroup) {
	for _, d := range group.Devices {
		if reason := t.calm.withheld[d.ID]; reason != "" && !t.used[d.ID] && d.Healthy {
			d.Healthy, d.HealthDesc = false, reason
		}
	}
}
