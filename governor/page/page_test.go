package page

import (
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A process with the page's descriptor can read the page, and change nothing.
func TestPage_OnlyItsMakerWrites(t *testing.T) {
	p, err := New()
	must.NoError(t, err)
	defer p.Close()
	shared, err := unix.Mmap(p.FD(), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must.NoError(t, err)
	defer func() { must.NoError(t, unix.Munmap(shared)) }()
	p.Set(3, GPU{State: 2, Turn: 7})
	must.Eq(t, 2, shared[0])
	must.Eq(t, 2, shared[128+3*64])
	must.Eq(t, 7, shared[128+3*64+8])
	p.Set(3, GPU{})
	must.Eq(t, 0, shared[0])

	_, err = unix.Mmap(p.FD(), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must.ErrorIs(t, err, unix.EPERM)
	_, err = unix.Pwrite(p.FD(), []byte{1}, 0)
	must.ErrorIs(t, err, unix.EPERM)
	must.ErrorIs(t, unix.Ftruncate(p.FD(), 0), unix.EPERM)
	must.ErrorIs(t, unix.Fallocate(p.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), unix.EPERM)
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", p.FD()), os.O_RDWR, 0)
	must.NoError(t, err)
	defer again.Close()
	_, err = again.WriteAt([]byte{1}, 0)
	must.ErrorIs(t, err, unix.EPERM)
}

// A thread that waits for a GPU's word, or for the gate, is woken by a change of it.
func TestSet_WakesWaiters(t *testing.T) {
	p, err := New()
	must.NoError(t, err)
	defer p.Close()
	shared, err := unix.Mmap(p.FD(), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must.NoError(t, err)
	defer func() { must.NoError(t, unix.Munmap(shared)) }()
	p.Set(1, GPU{State: 2})
	for _, word := range []int{0, 128 + 64} {
		p.Set(1, GPU{State: 2})
		woken := make(chan error, 1)
		go func() {
			const futexWait = 0
			most := unix.NsecToTimespec(int64(time.Minute))
			errno := unix.EINTR // the Go runtime's signals interrupt it
			for errno == unix.EINTR {
				_, _, errno = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&shared[word])), futexWait, 2,
					uintptr(unsafe.Pointer(&most)), 0, 0)
			}
			if errno == unix.EAGAIN {
				errno = 0 // it had changed before the thread waited
			}
			if errno != 0 {
				woken <- errno
			}
			close(woken)
		}()
		p.Set(1, GPU{State: 0})
		must.NoError(t, <-woken)
	}
}
