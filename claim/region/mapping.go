package region

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a file mapped into memory, so that its words are read and written whole.
type mapping []byte

// withMapping maps the first size bytes of f for the time of fn. A container may truncate its usage file at any moment,
// and touching a page that is gone is a SIGBUS; that becomes an error here instead of the end of the process.
func withMapping(f *os.File, size int, writable bool, fn func(mapping)) (err error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %s: %w", f.Name(), err)
	}
	defer func() { _ = unix.Munmap(m) }()

	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			err = fmt.Errorf("reading %s: it was truncated in the meantime (%w)", f.Name(), p)
		default:
			panic(p)
		}
	}()
	fn(mapping(m))
	return nil
}

func (m mapping) load64(off int64) uint64 { return load64(m.word(off)) }

func (m mapping) store64(off int64, v uint64) { atomic.StoreUint64(m.word(off), v) }

// load32 reads one of the 32-bit words, which are all aligned.
func (m mapping) load32(off int64) uint32 {
	return load32((*uint32)(unsafe.Pointer(&m[off]))) //nolint:gosec // inside the mapping: m is a slice
}

func (m mapping) word(off int64) *uint64 {
	return (*uint64)(unsafe.Pointer(&m[off])) //nolint:gosec // see load32; every offset is a multiple of 8
}
