package region

import "os"

// Usage is what a claim's processes hold.
type Usage struct {
	LimitBytes   uint64 `json:"limit_bytes"`
	ContextBytes uint64 `json:"context_bytes"`
	// UsedBytes is what the living processes hold together, contexts included.
	UsedBytes uint64 `json:"used_bytes"`
	// PeakBytes is the most that was ever held.
	PeakBytes uint64 `json:"peak_bytes"`
	// Refused counts the allocations that were refused.
	Refused   uint64    `json:"refused"`
	Processes []Process `json:"processes"`
}

// Process is one living process of a claim.
type Process struct {
	// PID is the process ID as the process itself sees it, for information only.
	PID      int    `json:"pid"`
	Contexts int    `json:"contexts"`
	Bytes    uint64 `json:"bytes"`
}

// Read sums up what the living processes of the region in dir hold. It writes nothing and waits for nobody: what dead
// processes have left behind is not counted here and is cleared away by the living.
func Read(dir string) (Usage, error) {
	h, err := ReadHeader(dir)
	if err != nil {
		return Usage{}, err
	}
	f, err := open(dir, UsageFile, false)
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()

	u := Usage{LimitBytes: h.LimitBytes, ContextBytes: h.ContextBytes}
	var lockErr error
	err = withMapping(f, UsageSize, false, func(m mapping) {
		u.Refused = m.load64(offUsageRefused)
		u.PeakBytes = m.load64(offUsagePeakPages) << pageShift
		u.Processes, lockErr = livingProcesses(f, m)
	})
	if err == nil {
		err = lockErr
	}
	if err != nil {
		return Usage{}, err
	}
	for _, p := range u.Processes {
		u.UsedBytes += p.Bytes
	}
	return u, nil
}

// livingProcesses reads the slots that somebody owns.
func livingProcesses(f *os.File, m mapping) ([]Process, error) {
	slots, err := ownedSlots(f, m)
	if err != nil {
		return nil, err
	}
	pages := steadyPages(m, slots)
	found := make([]Process, len(slots))
	for i, slot := range slots {
		at := slotOffset(slot)
		found[i] = Process{
			PID:      int(int32(m.load32(at + offSlotPID))),
			Contexts: int(int32(m.load32(at + offSlotContexts))),
			Bytes:    pages[i] << pageShift,
		}
	}
	return found, nil
}

func ownedSlots(f *os.File, m mapping) (owned []int, err error) {
	if any, err := anyLocked(f); err != nil || !any {
		return nil, err
	}
	for slot := range int(min(m.load64(offUsageHighWater), SlotCount)) {
		locked, err := slotLocked(f, slot)
		if err != nil {
			return nil, err
		}
		if locked {
			owned = append(owned, slot)
		}
	}
	return owned, nil
}

// readAttempts is how often the slots are read again because an operation went through meanwhile. Under a storm of
// operations the last reading has to do.
const readAttempts = 1000

// steadyPages reads what the slots' processes hold between two operations. The total names the only one that may not
// have reached its slot yet, so a reading during which the total stayed the same is exact.
func steadyPages(m mapping, slots []int) []uint64 {
	pages := make([]uint64, len(slots))
	for range readAttempts {
		before := total(m.load64(offUsageTotal))
		for i, slot := range slots {
			pages[i] = heldPages(m, slot, before)
		}
		if total(m.load64(offUsageTotal)) == before {
			break
		}
	}
	return pages
}

// heldPages is what a slot's process holds, with the last operation counted even if it has not reached the slot.
func heldPages(m mapping, slot int, last total) uint64 {
	at := slotOffset(slot)
	held := committed(m.load64(at + offSlotCommitted))
	if last.seq() == 0 || last.slot() != slot || nextSeq(held.seq()) != last.seq() {
		return held.pages()
	}
	op := operation(m.load64(at + offSlotOp))
	if op.seq() != last.seq() {
		return held.pages()
	}
	return uint64(max(0, int64(held.pages())+op.deltaPages()))
}
