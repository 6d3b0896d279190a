package region

import (
	"cmp"
	"fmt"
	"os"
	"time"
)

// Usage is what a claim's processes hold.
type Usage struct {
	LimitBytes   uint64 `json:"limit_bytes"`
	ContextBytes uint64 `json:"context_bytes"`
	// UsedBytes is what the living processes hold together, contexts and what they share included.
	UsedBytes uint64 `json:"used_bytes"`
	// PeakBytes is the most that was ever held.
	PeakBytes uint64 `json:"peak_bytes"`
	// Refused counts the allocations that were refused.
	Refused   uint64    `json:"refused"`
	Processes []Process `json:"processes"`
	// SharedBytes is the part of UsedBytes that is no single process's: memory that several have, which is there until
	// the last of them ends.
	SharedBytes uint64 `json:"shared_bytes,omitempty"`
	// Spill is what lives on the host beyond the limit; nil where the claim does not allow that.
	Spill *Spill `json:"gpu_host_memory,omitempty"`
}

// Spill is managed memory beyond the limit, which lives on the host.
type Spill struct {
	LimitBytes uint64 `json:"limit_bytes"`
	UsedBytes  uint64 `json:"used_bytes"`
	PeakBytes  uint64 `json:"peak_bytes"`
	Refused    uint64 `json:"refused"`
}

// Process is one living process of a claim.
type Process struct {
	// PID is the process ID as the process itself sees it, for information only.
	PID      int    `json:"pid"`
	Contexts int    `json:"contexts"`
	Bytes    uint64 `json:"bytes"`
}

// Read sums up what the living processes of the region in dir hold, and what dead ones have exported as descriptors that
// are open. It writes nothing and waits for nobody: what else dead processes have left behind is not counted here and is
// cleared away by the living.
func Read(dir string) (Usage, error) {
	h, f, err := openBoth(dir)
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()
	return readUsage(f, h)
}

// ReadOf is Read for those who know what the region says about its claim, which it does not read then.
func ReadOf(dir string, h Header) (Usage, error) {
	f, err := openUsage(dir, h.ClaimID)
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()
	return readUsage(f, h)
}

// readUsage maps the file only if somebody uses the region or something is left in it: otherwise no slot counts, and nobody
// changes the totals.
func readUsage(f *os.File, h Header) (Usage, error) {
	u := Usage{LimitBytes: h.LimitBytes, ContextBytes: h.ContextBytes}
	inUse, err := anyLocked(f)
	if err != nil {
		return Usage{}, err
	}
	if !inUse {
		totals := make(mapping, headerSize)
		if err := readStart(f, totals); err != nil {
			return Usage{}, err
		}
		if total(totals.load64(sumOffset(ledgerGPU)+offSumTotal)).pages() == 0 {
			u.fill(totals, nil, h.SpillBytes)
			return u, nil
		}
	}
	var slotsErr error
	err = withMapping(f, UsageSize, false, func(m mapping) {
		var slots []int
		if slots, slotsErr = ownedSlots(f, m); slotsErr == nil {
			u.fill(m, slots, h.SpillBytes)
		}
	})
	if err = cmp.Or(err, slotsErr); err != nil {
		return Usage{}, err
	}
	return u, nil
}

// fill sums up what the owned slots hold.
func (u *Usage) fill(m mapping, slots []int, spillBytes uint64) {
	u.Refused = m.load64(sumOffset(ledgerGPU) + offSumRefused)
	u.PeakBytes = m.load64(sumOffset(ledgerGPU)+offSumPeak) << pageShift
	u.Processes = []Process{}
	for i, pages := range steadyPages(m, slots, ledgerGPU) {
		at, bytes := slotOffset(slots[i]), pages<<pageShift
		u.UsedBytes += bytes
		if m.load64(at+offSlotLife)&lifeKindMask != kindProcess {
			u.SharedBytes += bytes
			continue
		}
		u.Processes = append(u.Processes, Process{
			PID:      int(int32(m.load32(at + offSlotPID))),
			Contexts: int(int32(m.load32(at + offSlotContexts))),
			Bytes:    bytes,
		})
	}
	u.Spill = readSpill(m, slots, spillBytes)
}

// readSpill sums up what is held beyond the limit. It is nil if that was never allowed.
func readSpill(m mapping, slots []int, limitBytes uint64) *Spill {
	s := Spill{
		LimitBytes: limitBytes,
		PeakBytes:  m.load64(sumOffset(ledgerSpill)+offSumPeak) << pageShift,
		Refused:    m.load64(sumOffset(ledgerSpill) + offSumRefused),
	}
	for _, pages := range steadyPages(m, slots, ledgerSpill) {
		s.UsedBytes += pages << pageShift
	}
	if s == (Spill{Refused: s.Refused}) {
		return nil
	}
	return &s
}

// lookPatience bounds how long it may take to find out which slots are owned. A container may have as many locks on its
// usage file as its memory holds, and for each slot the kernel looks through all of them: without a bound, a container
// could keep a processor of the host busy for minutes at each query of its use.
var lookPatience = 250 * time.Millisecond

func ownedSlots(f *os.File, m mapping) (owned []int, err error) {
	deadline := time.Now().Add(lookPatience)
	var open tags
	for slot := range int(min(m.load64(offUsageHighWater), SlotCount)) {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("looking for the owners of the slots in %s takes more than %s: the container's "+
				"processes have put too many locks on it", f.Name(), lookPatience)
		}
		locked, err := slotLocked(f, slot)
		if err != nil {
			return nil, err
		}
		if locked || open.keep(m, slot) {
			owned = append(owned, slot)
		}
	}
	return owned, nil
}

// readAttempts is how often the slots are read again because an operation went through meanwhile. Under a storm of
// operations the last reading has to do.
const readAttempts = 1000

// steadyPages reads what the slots hold between two operations. The total names the only one that may not have reached
// its slot yet, so a reading during which the total stayed the same is exact.
func steadyPages(m mapping, slots []int, l ledger) []uint64 {
	if len(slots) == 0 {
		return nil
	}
	pages := make([]uint64, len(slots))
	for range readAttempts {
		before := total(m.load64(sumOffset(l) + offSumTotal))
		last := pendingOf(m, before, l)
		for i, slot := range slots {
			pages[i] = last.heldPages(m, slot, l)
		}
		if total(m.load64(sumOffset(l)+offSumTotal)) == before {
			break
		}
	}
	return pages
}

// pending is the operation that a total names, if it has not reached its slot.
type pending struct {
	op   operation
	slot int // -1 if it has
}

func pendingOf(m mapping, t total, l ledger) pending {
	at := heldOffset(t.slot(), l)
	held := committed(m.load64(at + offHeldCommitted))
	op := operation(m.load64(at + offHeldOp))
	if t.seq() == 0 || nextSeq(held.seq()) != t.seq() || op.seq() != t.seq() {
		return pending{slot: -1}
	}
	return pending{op, t.slot()}
}

// heldPages is what a slot holds, with the pending operation counted.
func (p pending) heldPages(m mapping, slot int, l ledger) uint64 {
	at := heldOffset(slot, l)
	held := committed(m.load64(at + offHeldCommitted))
	pages := int64(held.pages())
	switch {
	case p.slot < 0:
	case p.slot == slot && nextSeq(held.seq()) == p.op.seq():
		pages += p.op.deltaPages()
	case p.op.moves() && p.op.receiver() == slot &&
		nextSeq(held.seq()) == operation(m.load64(at+offHeldOp)).seq():
		pages += p.op.movedPages()
	}
	return uint64(max(0, pages))
}
