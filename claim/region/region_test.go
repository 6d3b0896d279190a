package region

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

var testHeader = Header{ClaimID: "0badcafe", GPUUUID: "GPU-1", LimitBytes: 8 << 30, ContextBytes: 300 << 20}

func newRegion(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "claims", "0badcafe")
	must.NoError(t, Create(dir, testHeader))
	return dir
}

// process writes to a region as a process that uses it does.
type process struct {
	t *testing.T
	*os.File
}

func openAs(t *testing.T, dir string) process {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, UsageFile), os.O_RDWR, 0)
	must.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return process{t, f}
}

func (p process) hold(slot int) {
	p.t.Helper()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: slotOffset(slot), Len: 1}
	must.NoError(p.t, unix.FcntlFlock(p.Fd(), unix.F_OFD_SETLK, &lock))
}

func (p process) put(off int64, v uint64) {
	p.t.Helper()
	_, err := p.WriteAt(binary.LittleEndian.AppendUint64(nil, v), off)
	must.NoError(p.t, err)
}

func opWord(seq uint64, delta int64) uint64 { return seq<<seqShift | uint64(delta)&(1<<opDeltaBits-1) }

func moveWord(seq uint64, receiver int, pages uint64) uint64 {
	return seq<<seqShift | opMove | uint64(receiver)<<movePagesBits | pages
}

func totalWord(seq uint64, slot int, pages uint64) uint64 {
	return seq<<seqShift | uint64(slot)<<totalSlotShift | pages
}

func TestCreate(t *testing.T) {
	old := syscall.Umask(0o077)
	dir := newRegion(t)
	syscall.Umask(old)
	for name, mode := range map[string]os.FileMode{
		"": 0o755 | os.ModeDir, LimitFile: 0o644, UsageFile: 0o666, "..": 0o700 | os.ModeDir,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		must.NoError(t, err)
		must.Eq(t, mode, info.Mode(), must.Sprint(name))
	}
	h, err := ReadHeader(dir)
	must.NoError(t, err)
	must.Eq(t, testHeader, h)
	u, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, Usage{LimitBytes: 8 << 30, ContextBytes: 300 << 20, Processes: []Process{}}, u)

	var st unix.Stat_t
	must.NoError(t, unix.Stat(filepath.Join(dir, UsageFile), &st))
	must.Between(t, allocatedSize, st.Blocks*512, 4*allocatedSize, must.Sprint("what is used first is allocated"))
}

func TestCreateLeavesOthersAlone(t *testing.T) {
	dir := newRegion(t)
	user := openAs(t, dir)
	user.put(sumOffset(ledgerGPU)+offSumRefused, 7)
	must.ErrorIs(t, Create(dir, testHeader), os.ErrExist)
	u, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, 7, u.Refused)
	entries, err := os.ReadDir(filepath.Dir(dir))
	must.NoError(t, err)
	must.Len(t, 1, entries)
}

func TestCreateAfterOneThatDied(t *testing.T) {
	parent := t.TempDir()
	unfinished := filepath.Join(parent, unfinishedPrefix+"0badcafe")
	must.NoError(t, os.Mkdir(unfinished, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(unfinished, LimitFile), []byte("half"), 0o644))
	must.NoError(t, Create(filepath.Join(parent, "0badcafe"), testHeader))
	must.DirNotExists(t, unfinished)
}

func TestCreateRefuses(t *testing.T) {
	long := make([]byte, gpuUUIDBytes)
	for i := range long {
		long[i] = 'x'
	}
	for name, tc := range map[string]struct {
		h    Header
		want string
	}{
		"short ID":  {Header{ClaimID: "0bad", GPUUUID: "GPU-1"}, "claim ID"},
		"odd ID":    {Header{ClaimID: "../../xx", GPUUUID: "GPU-1"}, "claim ID"},
		"no UUID":   {Header{ClaimID: "0badcafe"}, "GPU UUID"},
		"long UUID": {Header{ClaimID: "0badcafe", GPUUUID: string(long)}, "GPU UUID"},
	} {
		dir := filepath.Join(t.TempDir(), "x")
		must.ErrorContains(t, Create(dir, tc.h), tc.want, must.Sprint(name))
		must.DirNotExists(t, dir)
	}
	// The longest UUID that fits.
	h := Header{ClaimID: "0badcafe", GPUUUID: string(long[1:])}
	dir := filepath.Join(t.TempDir(), "x")
	must.NoError(t, Create(dir, h))
	got, err := ReadHeader(dir)
	must.NoError(t, err)
	must.Eq(t, h, got)
}

func TestBadFiles(t *testing.T) {
	write := func(name string, off int64, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
			must.NoError(t, err)
			_, err = f.WriteAt([]byte(text), off)
			must.NoError(t, err)
			must.NoError(t, f.Close())
		}
	}
	truncate := func(name string, size int64) func(*testing.T, string) {
		return func(t *testing.T, dir string) { must.NoError(t, os.Truncate(filepath.Join(dir, name), size)) }
	}
	replaceBy := func(name string, makeIt func(path string) error) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			must.NoError(t, os.Remove(filepath.Join(dir, name)))
			must.NoError(t, makeIt(filepath.Join(dir, name)))
		}
	}
	noise := "\x9d\x02\xff\x10noise"
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"limit truncated":    {truncate(LimitFile, 100), "100 bytes long, not 4096"},
		"limit empty":        {truncate(LimitFile, 0), "0 bytes long"},
		"limit too long":     {truncate(LimitFile, 5000), "5000 bytes long"},
		"limit of noise":     {write(LimitFile, 0, noise), "none of ours or was overwritten"},
		"limit of version 1": {write(LimitFile, offVersion, "\x01"), "version 1 of the layout"},
		"limit of wrong size": {
			write(LimitFile, offSize, "\x01"), "it says that it is 4097 bytes long",
		},
		"limit without claim": {write(LimitFile, offClaimID, noise), "claim ID"},
		"limit without GPU":   {write(LimitFile, offLimitGPUUUID, "\x00"), "GPU UUID"},
		"usage truncated":     {truncate(UsageFile, 4096), "4096 bytes long, not 266240"},
		"usage of noise":      {write(UsageFile, 0, noise), "none of ours or was overwritten"},
		"usage of version 0":  {write(UsageFile, offVersion, "\x00"), "version 0 of the layout"},
		"usage of another":    {write(UsageFile, offClaimID, "deadbeef"), `belongs to claim "deadbeef"`},
		"usage of fewer slots": {
			write(UsageFile, offUsageSlotCount, "\x01\x00"), "it has 1 slots",
		},
		"no limit": {replaceBy(LimitFile, func(string) error { return nil }), "no such file"},
		"no usage": {replaceBy(UsageFile, func(string) error { return nil }), "no such file"},
		"a link":   {replaceBy(UsageFile, func(p string) error { return os.Symlink("/dev/zero", p) }), "symbolic links"},
		"a pipe":   {replaceBy(LimitFile, func(p string) error { return syscall.Mkfifo(p, 0o666) }), "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newRegion(t)
			tc.spoil(t, dir)
			_, err := ReadHeader(dir)
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, dir)
			_, err = Read(dir)
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, SetLimit(dir, 1), tc.want)
		})
	}
}

func TestSetLimit(t *testing.T) {
	dir := newRegion(t)
	before, err := os.Stat(filepath.Join(dir, LimitFile))
	must.NoError(t, err)
	must.NoError(t, SetLimit(dir, math.MaxUint64))
	h, err := ReadHeader(dir)
	must.NoError(t, err)
	want := testHeader
	want.LimitBytes = math.MaxUint64
	must.Eq(t, want, h)
	after, err := os.Stat(filepath.Join(dir, LimitFile))
	must.NoError(t, err)
	must.True(t, os.SameFile(before, after)) // containers have it mapped
}

func TestRead(t *testing.T) {
	const slot = 3
	for name, tc := range map[string]struct {
		total, op, committed uint64
		want                 uint64 // pages
	}{
		"nothing":             {0, 0, 0, 0},
		"announced only":      {0, opWord(1, 10), 0, 0},
		"in the total only":   {totalWord(1, slot, 10), opWord(1, 10), 0, 10},
		"in the slot too":     {totalWord(1, slot, 10), opWord(1, 10), opWord(1, 10), 10},
		"next one announced":  {totalWord(1, slot, 10), opWord(2, 5), opWord(1, 10), 10},
		"release in total":    {totalWord(2, slot, 4), opWord(2, -6), opWord(1, 10), 4},
		"release in slot":     {totalWord(2, slot, 4), opWord(2, -6), opWord(2, 4), 4},
		"of another slot":     {totalWord(2, slot+1, 4), opWord(2, 6), opWord(1, 10), 10},
		"number wraps":        {totalWord(1, slot, 15), opWord(1, 5), opWord(seqMask, 10), 15},
		"total of noise":      {math.MaxUint64, opWord(2, 5), opWord(1, 10), 10},
		"more freed than had": {totalWord(2, slot, 0), opWord(2, -60), opWord(1, 10), 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newRegion(t)
			p := openAs(t, dir)
			p.hold(slot)
			p.put(offUsageHighWater, slot+1)
			p.put(offTotal, tc.total)
			p.put(heldOffset(slot, ledgerGPU)+offHeldOp, tc.op)
			p.put(heldOffset(slot, ledgerGPU)+offHeldCommitted, tc.committed)
			p.put(slotOffset(slot)+offSlotLife, kindProcess)
			u, err := Read(dir)
			must.NoError(t, err)
			must.Eq(t, tc.want<<16, u.UsedBytes)
			must.Len(t, 1, u.Processes)

			must.NoError(t, p.Close()) // the process ends
			u, err = Read(dir)
			must.NoError(t, err)
			must.Zero(t, u.UsedBytes)
		})
	}
}

func TestReadNoise(t *testing.T) {
	dir := newRegion(t)
	p := openAs(t, dir)
	p.hold(0)
	p.hold(SlotCount - 1)
	for off := int64(offTotal); off < UsageSize; off += 8 {
		p.put(off, math.MaxUint64)
	}
	u, err := Read(dir)
	must.NoError(t, err)
	must.Len(t, 0, u.Processes) // kind 3
	must.Positive(t, u.SharedBytes)
}

// A container can truncate its usage file at any moment, and that must not end the process that looks at it.
func TestTruncatedWhileRead(t *testing.T) {
	dir := newRegion(t)
	f, err := open(dir, UsageFile, false)
	must.NoError(t, err)
	defer f.Close()
	err = withMapping(f, UsageSize, false, func(m mapping) {
		must.NoError(t, os.Truncate(f.Name(), 0))
		_ = m.load64(offTotal)
	})
	must.ErrorContains(t, err, "truncated in the meantime")
	must.ErrorContains(t, err, f.Name())
	must.Panic(t, func() { _ = withMapping(f, UsageSize, false, func(mapping) { panic("other") }) })
}

// steps are the writes by which two operations of one slot take and give back a page, each with the sum that holds
// after it: the total decides, whether or not the slot has caught up.
func steps(seq uint64, slot int, sum, held uint64) []struct{ off, word, sum uint64 } {
	at := uint64(heldOffset(slot, ledgerGPU))
	return []struct{ off, word, sum uint64 }{
		{at + offHeldOp, opWord(seq, 1), sum},
		{offTotal, totalWord(seq, slot, sum+1), sum + 1},
		{at + offHeldCommitted, opWord(seq, int64(held)+1), sum + 1},
		{at + offHeldOp, opWord(seq+1, -1), sum + 1},
		{offTotal, totalWord(seq+1, slot, sum), sum},
		{at + offHeldCommitted, opWord(seq+1, int64(held)), sum},
	}
}

// offTotal is where the sum of the GPU's memory is.
const offTotal = offUsageSums + offSumTotal

const testSlots, testHeld = 4, 1000

func busyRegion(t *testing.T) (string, process) {
	t.Helper()
	dir := newRegion(t)
	p := openAs(t, dir)
	p.put(offUsageHighWater, testSlots)
	for slot := range testSlots {
		p.hold(slot)
		p.put(heldOffset(slot, ledgerGPU)+offHeldCommitted, opWord(1, testHeld))
	}
	return dir, p
}

func TestReadIsExactAtEveryStep(t *testing.T) {
	dir, p := busyRegion(t)
	for seq := uint64(2); seq < 8; seq += 2 {
		for slot := range testSlots {
			for i, step := range steps(seq, slot, testSlots*testHeld, testHeld) {
				p.put(int64(step.off), step.word)
				u, err := Read(dir)
				must.NoError(t, err)
				must.Eq(t, step.sum<<16, u.UsedBytes, must.Sprintf("slot %d, step %d", slot, i))
			}
		}
	}
}

// Under a storm of operations a reading still ends, and is not far off.
func TestReadUnderOperations(t *testing.T) {
	dir, p := busyRegion(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		must.NoError(t, withMapping(p.File, UsageSize, true, func(m mapping) {
			for seq := uint64(2); ; seq += 2 {
				for slot := range testSlots {
					for _, step := range steps(seq, slot, testSlots*testHeld, testHeld) {
						m.store64(int64(step.off), step.word)
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}))
	})
	for range 2000 {
		u, err := Read(dir)
		must.NoError(t, err)
		pages := u.UsedBytes >> 16
		must.Between(t, testSlots*testHeld, pages, testSlots*(testHeld+1))
	}
	close(stop)
	wg.Wait()
}

// Every step of a move from a process to its share, in the order in which they are written: the sum never changes, and
// who holds what changes at once, when the total names the move.
func TestReadIsExactDuringMoves(t *testing.T) {
	const process, share = 2, 5
	dir := newRegion(t)
	p := openAs(t, dir)
	p.hold(process)
	p.hold(share)
	p.put(offUsageHighWater, share+1)
	at, to := heldOffset(process, ledgerGPU), heldOffset(share, ledgerGPU)
	p.put(slotOffset(process)+offSlotLife, kindProcess)
	p.put(slotOffset(share)+offSlotLife, 4<<lifeKindBits|kindShare)
	p.put(at+offHeldCommitted, opWord(7, 100))
	p.put(to+offHeldCommitted, opWord(3, 11))
	p.put(offTotal, totalWord(7, process, 111))
	for i, step := range []struct {
		off          int64
		word         uint64
		shared, rest uint64
	}{
		{to + offHeldOp, opWord(4, 30), 11, 100},
		{at + offHeldOp, moveWord(8, share, 30), 11, 100},
		{offTotal, totalWord(8, process, 111), 41, 70},
		{to + offHeldCommitted, opWord(4, 41), 41, 70},
		{at + offHeldCommitted, opWord(8, 70), 41, 70},
		{to + offHeldOp, opWord(5, -41), 41, 70},
		{offTotal, totalWord(5, share, 70), 0, 70},
	} {
		p.put(step.off, step.word)
		u, err := Read(dir)
		must.NoError(t, err)
		must.Eq(t, step.shared<<16, u.SharedBytes, must.Sprintf("step %d", i))
		must.Eq(t, step.rest<<16, u.Processes[0].Bytes, must.Sprintf("step %d", i))
	}
}

func TestSetSpill(t *testing.T) {
	dir := newRegion(t)
	must.NoError(t, SetSpill(dir, 5<<30))
	h, err := ReadHeader(dir)
	must.NoError(t, err)
	want := testHeader
	want.SpillBytes = 5 << 30
	must.Eq(t, want, h)
	u, err := Read(dir)
	must.NoError(t, err)
	must.Eq(t, &Spill{LimitBytes: 5 << 30}, u.Spill)
}
