package governor

import (
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A descriptor that is closed while its event is pending, as when a process ends, passes that event to no other one: the next
// process's descriptor may have its number.
func TestLoop_EventOfAClosedDescriptor(t *testing.T) {
	l, err := newLoop()
	must.NoError(t, err)
	defer l.close()
	event := func(count uint) int {
		fd, err := unix.Eventfd(count, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		must.NoError(t, err)
		return fd
	}
	ends, ended, called := event(1), event(1), false
	must.NoError(t, l.add(ends, func() {
		l.remove(ends)
		l.remove(ended)
		for { // until the number is used again
			fd := event(0)
			must.NoError(t, l.add(fd, func() { called = true }))
			if fd == ended {
				return
			}
		}
	}))
	must.NoError(t, l.add(ended, func() { t.Error("its event came first") }))
	must.NoError(t, l.wait(make([]unix.EpollEvent, 64)))
	must.False(t, called)
	for fd := range l.handlers {
		if fd != l.timer && fd != l.event {
			l.remove(fd)
		}
	}
}

// A time that has passed is due again if it is asked for again: a process may be found to be stopped by the timer that was due when
// its turn has to end.
func TestLoop_SameTimeAgain(t *testing.T) {
	l, err := newLoop()
	must.NoError(t, err)
	defer l.close()
	for range 2 {
		must.NoError(t, l.set(1))
		ready := []unix.PollFd{{Fd: int32(l.timer), Events: unix.POLLIN}}
		count, err := unix.Poll(ready, 10_000)
		must.NoError(t, err)
		must.Eq(t, 1, count)
		must.NoError(t, l.wait(make([]unix.EpollEvent, 64)))
	}
}
