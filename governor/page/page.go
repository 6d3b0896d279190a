// Package page is the memory file in which the governor publishes whether a process may launch work on its GPUs. The process
// maps it read-only; only the governor can write it. intercept/governor/page.h has the layout in C.
package page

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout.
const (
	gpus      = 16
	heartbeat = 64
	first     = 128
	gpuSize   = 64
	state     = 0
	turn      = 8
	meter     = 16
	turnEnd   = 24
	switchNS  = 32
)

// size is the size of the file: a whole page on any machine.
func size() int { return max(4096, os.Getpagesize()) }

// GPU is what the page says of one GPU.
type GPU struct {
	// State is 0 if the gate is open, 1 if it is metered, 2 if it is closed.
	State uint32
	// Turn numbers the claim's current turn, or its last.
	Turn uint64
	// MeterNS is the most outstanding work in the metered state.
	MeterNS uint64
	// TurnEndNS is when the turn ends, by CLOCK_MONOTONIC; 0 if that is unknown.
	TurnEndNS uint64
	// SwitchNS is the measured cost of a switch between claims.
	SwitchNS uint64
}

// Page is the page of one process. Its methods must not be called concurrently.
type Page struct {
	file  *os.File
	bytes []byte
	now   [gpus]GPU
}

// New makes a page on which all gates are open.
func New() (*Page, error) {
	fd, err := unix.MemfdCreate("tranche-governor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a page: %w", os.NewSyscallError("memfd_create", err))
	}
	p := &Page{file: os.NewFile(uintptr(fd), "page")}
	if err := p.init(fd); err != nil {
		p.file.Close()
		return nil, fmt.Errorf("make a page: %w", err)
	}
	return p, nil
}

// init maps the file for writing and then seals it, so that nobody else can.
func (p *Page) init(fd int) error {
	if err := unix.Ftruncate(fd, int64(size())); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	var err error
	if p.bytes, err = unix.Mmap(fd, 0, size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(p.bytes)
		return fmt.Errorf("seal it, which takes Linux 5.1: %w", err)
	}
	return nil
}

// Close unmaps the page here. The process that has it continues seeing what it said last.
func (p *Page) Close() {
	_ = unix.Munmap(p.bytes)
	p.file.Close()
}

// FD returns the descriptor to be sent to the process.
func (p *Page) FD() int { return int(p.file.Fd()) }

// Bytes returns a copy of what the process sees.
func (p *Page) Bytes() []byte { return append([]byte(nil), p.bytes[:4096]...) }

// Beat sets the heartbeat, by CLOCK_MONOTONIC. It has to be fresh before a gate is closed.
func (p *Page) Beat(now uint64) { atomic.StoreUint64(p.word64(heartbeat), now) }

// Set changes what the page says of a GPU, and wakes the threads that wait for that.
func (p *Page) Set(gpu int, to GPU) {
	at := first + gpu*gpuSize
	was := p.now[gpu]
	p.now[gpu] = to
	atomic.StoreUint64(p.word64(at+turn), to.Turn)
	atomic.StoreUint64(p.word64(at+meter), to.MeterNS)
	atomic.StoreUint64(p.word64(at+turnEnd), to.TurnEndNS)
	atomic.StoreUint64(p.word64(at+switchNS), to.SwitchNS)
	atomic.StoreUint32(p.word32(at+state), to.State)
	gate := uint32(0)
	for _, g := range p.now {
		gate = max(gate, g.State)
	}
	before := atomic.SwapUint32(p.word32(0), gate)
	if was.State != to.State {
		p.wake(at + state)
	}
	if before != gate {
		p.wake(0)
	}
}

// wake wakes all threads that wait for a change of a word.
func (p *Page) wake(at int) {
	const futexWake = 1
	address := uintptr(unsafe.Pointer(p.word32(at))) //nolint:gosec // a futex is an address
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, address, futexWake, math.MaxInt32, 0, 0, 0)
}

func (p *Page) word32(at int) *uint32 { return (*uint32)(unsafe.Pointer(&p.bytes[at])) } //nolint:gosec // of a mapping
func (p *Page) word64(at int) *uint64 { return (*uint64)(unsafe.Pointer(&p.bytes[at])) } //nolint:gosec // of a mapping
