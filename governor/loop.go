package governor

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loop waits for descriptors and for the time in one thread. Everything that governs runs there, without locks: a message is
// answered some microseconds after it has come.
type loop struct {
	epoll, timer, event int
	handlers            map[int]handler
	added               int32         // how many descriptors were added
	due                 time.Duration // when the timer fires; 0 if it does not

	mu     sync.Mutex
	posted []func()
}

// handler is what is called when a descriptor can be read.
type handler struct {
	readable func()
	added    int32 // of the descriptor: another one may have its number later
}

func newLoop() (*loop, error) {
	l := &loop{epoll: -1, timer: -1, event: -1, handlers: make(map[int]handler)}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		l.close()
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	if l.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	for fd, fired := range map[int]func(){l.timer: func() { l.due = 0 }, l.event: func() {}} {
		if err := l.add(fd, func() { drain(fd); fired() }); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *loop) close() {
	for _, fd := range []int{l.epoll, l.timer, l.event} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// drain reads a timer or an event.
func drain(fd int) {
	var count [8]byte
	_, _ = unix.Read(fd, count[:])
}

// add has a function called whenever a descriptor can be read.
func (l *loop) add(fd int, readable func()) error {
	l.added++
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd), Pad: l.added}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("wait for a descriptor: %w", os.NewSyscallError("epoll_ctl", err))
	}
	l.handlers[fd] = handler{readable, l.added}
	return nil
}

// remove ends that, and closes the descriptor.
func (l *loop) remove(fd int) {
	delete(l.handlers, fd)
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	_ = unix.Close(fd)
}

// post has a function called in the loop. It can be called from anywhere.
func (l *loop) post(do func()) {
	l.mu.Lock()
	l.posted = append(l.posted, do)
	l.mu.Unlock()
	l.wake()
}

func (l *loop) wake() { _, _ = unix.Write(l.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (l *loop) take() []func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	posted := l.posted
	l.posted = nil
	return posted
}

// run calls the handlers, and the node whenever it asked for that, until the context ends.
func (l *loop) run(ctx context.Context, n *node) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer hurry()()
	defer context.AfterFunc(ctx, l.wake)()
	events := make([]unix.EpollEvent, 16) // what is due comes in between
	for ctx.Err() == nil {
		for _, do := range l.take() {
			do()
		}
		if err := l.set(n.tick(monotonic())); err != nil {
			return err
		}
		if err := l.wait(events); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for descriptors and calls their handlers.
func (l *loop) wait(events []unix.EpollEvent) error {
	count, err := unix.EpollWait(l.epoll, events, -1)
	if err != nil && err != unix.EINTR {
		return os.NewSyscallError("epoll_wait", err)
	}
	for _, event := range events[:max(count, 0)] {
		// A handler may have closed the descriptor, and another one may have its number already.
		if h, ok := l.handlers[int(event.Fd)]; ok && h.added == event.Pad {
			h.readable()
		}
	}
	return nil
}

// hurry raises the priority of this thread, for which launches on a busy machine wait, if it may. The function that it returns
// takes that back.
func hurry() func() {
	const nice = -15
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 - nice
	if err != nil || 20-raw <= nice {
		return func() {}
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
	return func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 20-raw) }
}

// set sets the timer to a time by CLOCK_MONOTONIC; 0 is never.
func (l *loop) set(due time.Duration) error {
	if due == l.due {
		return nil
	}
	l.due = due
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(due))}
	if err := unix.TimerfdSettime(l.timer, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	return nil
}
