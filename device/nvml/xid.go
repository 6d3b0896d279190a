package nvml

// XidKind is the kind of an Xid error.
type XidKind int

// The kinds of Xid errors, by the immediate action in NVIDIA's catalog.
const (
	// XidUnknown is in no table. Whether the GPU is healthy depends on its recovery action.
	XidUnknown XidKind = iota
	// XidApplication is a fault of a program, or one that ends a program only.
	XidApplication
	// XidNotice is a notice, or follows another error.
	XidNotice
	// XidReset makes the GPU unhealthy until it is reset.
	XidReset
	// XidMachine is a fault of the hardware or of the machine, which a reset of the GPU does not repair.
	XidMachine
	// XidRecovery says that the recovery action has changed, and is to be read.
	XidRecovery
)

// Verdict is what an Xid error means.
type Verdict struct {
	Kind XidKind
	// Meaning is a few words for people.
	Meaning string
}

// Unhealthy reports whether the error by itself makes the GPU unhealthy.
func (v Verdict) Unhealthy() bool { return v.Kind == XidReset || v.Kind == XidMachine }

// VerdictOn returns what an Xid error means.
func VerdictOn(xid uint64) Verdict {
	if verdict, ok := xids[xid]; ok {
		return verdict
	}
	return Verdict{XidUnknown, "an error that NVIDIA's catalog does not list"}
}

// xids follows the immediate action in NVIDIA's Xid catalog for Ampere and newer
// GPUs (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html):
// RESTART_APP and IGNORE concern the application, RESET_GPU the GPU.
var xids = func() map[uint64]Verdict {
	table := map[uint64]Verdict{
		8:   {XidApplication, "a program's work took too long and was stopped"},
		13:  {XidApplication, "a program's kernel did something invalid"},
		31:  {XidApplication, "a program used memory that is not its own"},
		32:  {XidApplication, "a program's command stream was invalid"},
		43:  {XidApplication, "a program's work was stopped"},
		45:  {XidNotice, "work was stopped because of another error or on demand"},
		46:  {XidReset, "the GPU stopped processing"},
		48:  {XidReset, "a double-bit error in memory"},
		54:  {XidMachine, "the power cable is not connected"},
		60:  {XidApplication, "a program used the video engine wrongly"},
		62:  {XidReset, "the GPU's microcontroller halted"},
		63:  {XidNotice, "a row of memory is to be remapped, or a page retired"},
		64:  {XidReset, "a row of memory could not be remapped, or a page not retired"},
		68:  {XidApplication, "the video decoder failed for a program"},
		69:  {XidApplication, "a program's graphics work was invalid"},
		74:  {XidMachine, "an NVLink error"},
		78:  {XidMachine, "the vGPU could not be started"},
		79:  {XidMachine, "the GPU fell off the bus"},
		92:  {XidNotice, "many single-bit errors, which were corrected"},
		93:  {XidNotice, "the InfoROM is not as it should be"},
		94:  {XidApplication, "an uncorrected memory error that was contained"},
		95:  {XidReset, "an uncorrected memory error that was not contained"},
		109: {XidReset, "a context switch took too long"},
		110: {XidReset, "a security fault"},
		119: {XidReset, "the GPU's system processor does not answer"},
		120: {XidReset, "the GPU's system processor failed"},
		121: {XidNotice, "an error on the link between chips was corrected"},
		136: {XidReset, "the GPU's link could not be trained"},
		137: {XidApplication, "a program used peer memory wrongly over NVLink"},
		140: {XidReset, "an unrecovered memory error"},
		143: {XidReset, "the GPU could not be initialised"},
		151: {XidMachine, "the virtual machine has to be restarted"},
		154: {XidRecovery, "the driver changed what it asks to be done"},
		155: {XidReset, "an NVLink of the GPU went down"},
		156: {XidReset, "a resource of the GPU was retired"},
		158: {XidReset, "the GPU does not answer in time"},
		171: {XidNotice, "more on an uncorrected error in memory"},
		172: {XidNotice, "more on an uncorrected error in a cache"},
	}
	for _, several := range []struct {
		verdict Verdict
		from    uint64
		to      uint64
	}{
		{Verdict{XidApplication, "a copy engine or a program's work failed"}, 37, 41},
		{Verdict{XidApplication, "an engine failed for a program"}, 66, 71},
		{Verdict{XidApplication, "an engine failed for a program"}, 75, 77},
		{Verdict{XidApplication, "an engine failed for a program"}, 82, 89},
		{Verdict{XidApplication, "an engine failed for a program"}, 96, 105},
		{Verdict{XidNotice, "the driver informs"}, 106, 108},
		{Verdict{XidApplication, "an engine failed for a program"}, 126, 135},
		{Verdict{XidMachine, "an NVLink error"}, 144, 150},
		{Verdict{XidApplication, "an engine failed for a program"}, 11, 11},
		{Verdict{XidApplication, "an engine failed for a program"}, 44, 44},
		{Verdict{XidApplication, "an engine failed for a program"}, 80, 80},
		{Verdict{XidApplication, "an engine failed for a program"}, 139, 139},
		{Verdict{XidApplication, "an engine failed for a program"}, 141, 141},
		{Verdict{XidApplication, "an engine failed for a program"}, 157, 157},
		{Verdict{XidApplication, "an engine failed for a program"}, 160, 161},
	} {
		for xid := several.from; xid <= several.to; xid++ {
			if _, listed := table[xid]; !listed {
				table[xid] = several.verdict
			}
		}
	}
	return table
}()
