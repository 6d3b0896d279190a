package region

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A container's root owns the usage file and may hold a lease on it: whoever opens the file would wait 45 seconds for the
// kernel to take that away, and again each time.
func TestHostile_Lease(t *testing.T) {
	dir := newRegion(t)
	f, err := os.OpenFile(filepath.Join(dir, UsageFile), os.O_RDWR, 0)
	must.NoError(t, err)
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	must.NoError(t, err)
	for name, look := range map[string]func() error{
		"read":   func() error { _, err := Read(dir); return err },
		"header": func() error { _, err := ReadHeader(dir); return err },
		"in use": func() error { _, err := InUse(dir); return err },
	} {
		must.ErrorIs(t, look(), unix.EAGAIN, must.Sprint(name))
	}
}

// Locks of every kind, on everything: nobody waits for them.
func TestHostile_Locks(t *testing.T) {
	dir := newRegion(t)
	f := openAs(t, dir)
	must.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	f.put(offUsageHighWater, SlotCount)
	everything := unix.Flock_t{Type: unix.F_WRLCK}
	must.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &everything))
	inUse, err := InUse(dir)
	must.NoError(t, err)
	must.True(t, inUse)
	u, err := Read(dir)
	must.NoError(t, err)
	must.Zero(t, u.UsedBytes)
	must.NoError(t, SetLimit(dir, 1))
}

// More locks than the kernel can look through for each slot in the time that there is.
func TestHostile_TooManyLocks(t *testing.T) {
	before := lookPatience
	lookPatience = time.Millisecond
	t.Cleanup(func() { lookPatience = before })
	dir := newRegion(t)
	f := openAs(t, dir)
	f.hold(SlotCount - 1)
	f.put(offUsageHighWater, SlotCount)
	for i := range int64(4000) { // behind the file's end, where they are in nobody's way
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 1<<40 - 2*i, Len: 1}
		must.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	}
	_, err := Read(dir)
	must.ErrorContains(t, err, "too many locks")
	must.ErrorContains(t, err, dir)
	inUse, err := InUse(dir)
	must.NoError(t, err)
	must.True(t, inUse)
}

// Whatever the modes and names of what is there: an error, at once, and nothing is followed.
func TestHostile_Sparse(t *testing.T) {
	dir := newRegion(t)
	f := openAs(t, dir)
	must.NoError(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, UsageSize))
	_, err := Read(dir)
	must.ErrorContains(t, err, "none of ours or was overwritten")
	for _, size := range []int64{0, 1, UsageSize - 1, UsageSize + 1, 1 << 40} {
		must.NoError(t, f.Truncate(size))
		_, err := Read(dir)
		must.ErrorContains(t, err, "not 266240")
	}
}

// Noise without end, and a file that becomes shorter and longer meanwhile: every look ends, with an answer or an error.
func TestHostile_NoiseForEver(t *testing.T) {
	dir := newRegion(t)
	f := openAs(t, dir)
	f.hold(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		noise := rand.New(rand.NewPCG(1, 2))
		for step := 0; ; step++ {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = f.WriteAt([]byte{byte(noise.Uint32())}, offUsageSums+noise.Int64N(UsageSize-offUsageSums))
			if step%1000 == 0 {
				_ = f.Truncate(headerSize)
				_ = f.Truncate(UsageSize)
				_, _ = f.WriteAt(encodeUsage(testHeader.ClaimID)[:offUsageSums], 0)
			}
		}
	})
	answers := 0
	for range 3000 {
		if _, err := Read(dir); err == nil {
			answers++
		}
		_, _ = InUse(dir)
	}
	close(stop)
	wg.Wait()
	must.Positive(t, answers)
}
