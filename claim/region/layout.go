// Package region is the Go side of a claim's region: the two small files through which the claim's processes account
// for GPU memory and the host states the limit.
//
// The processes map `limit` read-only and `usage` for writing, and account in it without locks; intercept/region.h is
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
	Version = 1

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
)

// The usage file: a page of totals, then the slots.
const (
	// UsageSize is the size of the usage file.
	UsageSize = headerSize + SlotCount*slotSize
	// SlotCount is how many processes can use a claim at once.
	SlotCount = 1024

	usageMagic = "TRNCUSE\x00"

	headerSize         = 4096
	offUsageSlotCount  = 24
	offUsagePageShift  = 28
	offUsageTotal      = 64
	offUsageHighWater  = 128
	offUsageLastReapNs = 136
	offUsageNextSlot   = 144
	offUsageRefused    = 192
	offUsagePeakPages  = 200
	pageShift          = 12
	slotSize           = 64
	offSlotOp          = 0
	offSlotCommitted   = 8
	offSlotPID         = 16
	offSlotContexts    = 20
)

// The words that are changed atomically. An operation on a slot has a sequence number, and `total` names the slot and
// the number of the last one, so that anybody can finish what its process may not live to.
const (
	seqBits        = 24
	seqShift       = 64 - seqBits
	seqMask        = 1<<seqBits - 1
	slotPagesBits  = 40
	slotPagesMask  = 1<<slotPagesBits - 1
	totalPagesBits = 30
	totalSlotShift = totalPagesBits
	totalSlotMask  = SlotCount - 1
)

// slotOffset is where a slot begins, and the byte that its owner holds a lock on.
func slotOffset(slot int) int64 { return headerSize + int64(slot)*slotSize }

// total is the word that states the claim's sum and the operation that made it so.
type total uint64

func (t total) seq() uint64 { return uint64(t) >> seqShift }
func (t total) slot() int   { return int(uint64(t) >> totalSlotShift & totalSlotMask) }

// committed is the word that states what a slot's process holds.
type committed uint64

func (c committed) seq() uint64   { return uint64(c) >> seqShift }
func (c committed) pages() uint64 { return uint64(c) & slotPagesMask }

// operation is the word that announces a change of what a slot's process holds.
type operation uint64

func (o operation) seq() uint64 { return uint64(o) >> seqShift }

// deltaPages is signed: the low 40 bits in two's complement.
func (o operation) deltaPages() int64 { return int64(uint64(o)<<seqBits) >> seqBits }

// nextSeq is the sequence number after seq; 0 stands for no operation and is left out.
func nextSeq(seq uint64) uint64 {
	if seq = (seq + 1) & seqMask; seq == 0 {
		return 1
	}
	return seq
}
