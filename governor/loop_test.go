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
