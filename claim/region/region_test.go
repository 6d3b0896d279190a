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

func opWord(seq uint64, delta int64) uint64 { return seq<<seqShift | uint64(delta)&slotPagesMask }

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
	must.GreaterEq(t, int64(UsageSize), st.Blocks*512, must.Sprint("all of it is allocated"))
}

func TestCreateLeavesOthersAlone(t *testing.T) {
	dir := newRegion(t)
	user := openAs(t, dir)
	user.put(offUsageRefused, 7)
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
		"limit of version 2": {write(LimitFile, offVersion, "\x02"), "version 2 of the layout"},
		"limit of wrong size": {
			write(LimitFile, offSize, "\x01"), "it says that it is 4097 bytes long",
		},
		"limit without claim": {write(LimitFile, offClaimID, noise), "claim ID"},
		"limit without GPU":   {write(LimitFile, offLimitGPUUUID, "\x00"), "GPU UUID"},
		"usage truncated":     {truncate(UsageFile, 4096), "4096 bytes long, not 69632"},
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
			p.put(offUsageTotal, tc.total)
			p.put(slotOffset(slot)+offSlotOp, tc.op)
			p.put(slotOffset(slot)+offSlotCommitted, tc.committed)
			u, err := Read(dir)
			must.NoError(t, err)
			must.Eq(t, tc.want<<12, u.UsedBytes)
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
	p.hold(1023)
	for off := int64(offUsageTotal); off < UsageSize; off += 8 {
		p.put(off, math.MaxUint64)
	}
	u, err := Read(dir)
	must.NoError(t, err)
	must.Len(t, 2, u.Processes)
}

// A container can truncate its usage file at any moment, and that must not end the process that looks at it.
func TestTruncatedWhileRead(t *testing.T) {
	dir := newRegion(t)
	f, err := open(dir, UsageFile, false)
	must.NoError(t, err)
	defer f.Close()
	err = withMapping(f, UsageSize, false, func(m mapping) {
		must.NoError(t, os.Truncate(f.Name(), 0))
		_ = m.load64(offUsageTotal)
	})
	must.ErrorContains(t, err, "truncated in the meantime")
	must.ErrorContains(t, err, f.Name())
	must.Panic(t, func() { _ = withMapping(f, UsageSize, false, func(mapping) { panic("other") }) })
}

// steps are the writes by which two operations of one slot take and give back a page, each with the sum that holds
// after it: the total decides, whether or not the slot has caught up.
func steps(seq uint64, slot int, sum, held uint64) []struct{ off, word, sum uint64 } {
	at := uint64(slotOffset(slot))
	return []struct{ off, word, sum uint64 }{
		{at + offSlotOp, opWord(seq, 1), sum},
		{offUsageTotal, totalWord(seq, slot, sum+1), sum + 1},
		{at + offSlotCommitted, opWord(seq, int64(held)+1), sum + 1},
		{at + offSlotOp, opWord(seq+1, -1), sum + 1},
		{offUsageTotal, totalWord(seq+1, slot, sum), sum},
		{at + offSlotCommitted, opWord(seq+1, int64(held)), sum},
	}
}

const testSlots, testHeld = 4, 1000

func busyRegion(t *testing.T) (string, process) {
	t.Helper()
	dir := newRegion(t)
	p := openAs(t, dir)
	p.put(offUsageHighWater, testSlots)
	for slot := range testSlots {
		p.hold(slot)
		p.put(slotOffset(slot)+offSlotCommitted, opWord(1, testHeld))
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
				must.Eq(t, step.sum<<12, u.UsedBytes, must.Sprintf("slot %d, step %d", slot, i))
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
		pages := u.UsedBytes >> 12
		must.Between(t, testSlots*testHeld, pages, testSlots*(testHeld+1))
	}
	close(stop)
	wg.Wait()
}
