// Package region is the Go side of a claim's region: the two small files through which the claim's processes account
// for GPU memory and the host states the limit.
//
// The processes map `limit` read-only and `usage` for writing, and account in it without locks; intercept/region/region.h is
// the statement of the layout and of the protocol, and a test of this package holds both sides against each other. The
// host makes the files, changes the limit and reads what is used; it never writes to `usage` once that exists.
//
// Whatever is in `usage` was written by the container's own processes, so nothing here trusts it further than to report
// it.
package region

// Names of the two files in a region's directory.
const (
	LimitFile = "limit"
	UsageFile = "usage"
)

// What both files begin with.
const (
	// Version is the version of the layout.
	Version = 3

	offMagic   = 0
	magicBytes = 8
	offVersion = 8
	offSize    = 12
	offClaimID = 16

	claimIDBytes = 8
)

// The limit file: one page, written by the host only.
const (
	// LimitSize is the size of the limit file.
	LimitSize = 4096

	limitMagic = "TRNCLIM\x00"

	offLimitGPUUUID      = 24
	gpuUUIDBytes         = 80
	offLimitLimitBytes   = 104
	offLimitContextBytes = 112
	offLimitShare        = 120
	offLimitFlags        = 128
	offLimitSpillBytes   = 136
	offLimitUncounted    = 144
)

// The usage file: a page of totals, then the slots.
const (
	// UsageSize is the size of the usage file.
	UsageSize = headerSize + SlotCount*slotSize
	// SlotCount is how many processes and shares can use a claim at once.
	SlotCount = 4096

	usageMagic = "TRNCUSE\x00"

	headerSize        = 4096
	offUsageSlotCount = 24
	offUsagePageShift = 28
	offUsageSums      = 64
	offUsageHighWater = 320
	offUsageNextSlot  = 336
	pageShift         = 16

	// One for each ledger.
	sumSize       = 128
	offSumTotal   = 0
	offSumRefused = 64
	offSumPeak    = 72

	slotSize        = 64
	offSlotHeld     = 0
	offSlotPID      = 32
	offSlotContexts = 36
	offSlotTag      = 40
	offSlotTarget   = 48
	offSlotLife     = 56

	// One for each ledger.
	heldSize         = 16
	offHeldOp        = 0
	offHeldCommitted = 8
)

// The words that are changed atomically. An operation on a slot has a sequence number, and `total` names the slot and
// the number of the last one, so that anybody can finish what its process may not live to.
const (
	seqBits        = 24
	seqShift       = 64 - seqBits
	seqMask        = 1<<seqBits - 1
	slotPagesBits  = 40
	slotPagesMask  = 1<<slotPagesBits - 1
	totalPagesBits = 28
	totalSlotShift = totalPagesBits
	totalSlotMask  = SlotCount - 1
	opDeltaBits    = 39
	opMove         = 1 << opDeltaBits
	movePagesBits  = 27
	movePagesMask  = 1<<movePagesBits - 1
	moveSlotMask   = SlotCount - 1
	lifeKindBits   = 3
	lifeKindMask   = 1<<lifeKindBits - 1
)

// What is accounted for.
type ledger int64

const (
	ledgerGPU   ledger = iota // memory of the GPU
	ledgerSpill               // managed memory beyond the limit, which lives on the host
	ledgerCount
)

// What a slot is.
const (
	kindNone = iota
	kindProcess
	kindShare // memory that outlives its maker, counted as long as anybody holds it
	kindEnded // a share that nobody holds any more
	kindName  // a further tag of a share
)

// slotOffset is where a slot begins, and the byte that its owner holds a lock on.
func slotOffset(slot int) int64 { return headerSize + int64(slot)*slotSize }

// heldOffset is where a slot's words for one ledger begin.
func heldOffset(slot int, l ledger) int64 { return slotOffset(slot) + offSlotHeld + int64(l)*heldSize }

// sumOffset is where the words for the sum of one ledger begin.
func sumOffset(l ledger) int64 { return offUsageSums + int64(l)*sumSize }

// total is the word that states the claim's sum and the operation that made it so.
type total uint64

func (t total) seq() uint64   { return uint64(t) >> seqShift }
func (t total) slot() int     { return int(uint64(t) >> totalSlotShift & totalSlotMask) }
func (t total) pages() uint64 { return uint64(t) & (1<<totalPagesBits - 1) }

// committed is the word that states what a slot's process holds.
type committed uint64

func (c committed) seq() uint64   { return uint64(c) >> seqShift }
func (c committed) pages() uint64 { return uint64(c) & slotPagesMask }

// operation is the word that announces a change of what a slot's process holds. Some move pages to another slot.
type operation uint64

func (o operation) seq() uint64 { return uint64(o) >> seqShift }

func (o operation) moves() bool { return o&opMove != 0 }

func (o operation) receiver() int { return int(uint64(o) >> movePagesBits & moveSlotMask) }

func (o operation) movedPages() int64 { return int64(uint64(o) & movePagesMask) }

// deltaPages is how much more the slot holds afterwards: signed, in two's complement, or what it gives away.
func (o operation) deltaPages() int64 {
	if o.moves() {
		return -o.movedPages()
	}
	return int64(uint64(o)<<(64-opDeltaBits)) >> (64 - opDeltaBits)
}

// nextSeq is the sequence number after seq; 0 stands for no operation and is left out.
func nextSeq(seq uint64) uint64 {
	if seq = (seq + 1) & seqMask; seq == 0 {
		return 1
	}
	return seq
}
