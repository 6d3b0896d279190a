package region

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// What a dead process exported counts as long as a descriptor of it is open, which carries the share's tag as a lock.
func TestReadCountsWhatDescriptorsKeep(t *testing.T) {
	const share, tag = 3, 0x123456789abcdef
	dir := newRegion(t)
	p := openAs(t, dir)
	p.hold(share)
	p.put(offUsageHighWater, share+1)
	p.put(slotOffset(share)+offSlotLife, 5<<lifeKindBits|kindShare)
	p.put(slotOffset(share)+offSlotTag, tag)
	p.put(heldOffset(share, ledgerGPU)+offHeldCommitted, opWord(7, 100))
	p.put(offTotal, totalWord(7, share, 100))
	must.NoError(t, p.Close()) // the process ends
	used := func() uint64 {
		u, err := Read(dir)
		must.NoError(t, err)
		must.Eq(t, u.UsedBytes, u.SharedBytes)
		return u.UsedBytes >> pageShift
	}
	must.Eq(t, 0, used(), must.Sprint("a share that was not exported"))

	q := openAs(t, dir)
	q.put(slotOffset(share)+offSlotTarget, 1)
	must.NoError(t, q.Close())
	must.Eq(t, 0, used(), must.Sprint("no descriptor of it"))

	exported, err := os.Create(filepath.Join(t.TempDir(), "exported"))
	must.NoError(t, err)
	defer exported.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: tagLocks | (tag + 1), Len: 1}
	must.NoError(t, unix.FcntlFlock(exported.Fd(), unix.F_OFD_SETLK, &lock))
	must.Eq(t, 0, used(), must.Sprint("a descriptor of other memory"))
	lock.Start = tagLocks | tag
	must.NoError(t, unix.FcntlFlock(exported.Fd(), unix.F_OFD_SETLK, &lock))
	must.Eq(t, 100, used())
	must.NoError(t, exported.Close())
	must.Eq(t, 0, used(), must.Sprint("the descriptor is closed"))
}
