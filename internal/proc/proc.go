// Package proc identifies processes of this host, waits for their end and signals them. It knows nothing of containers.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ID identifies one process for good: the kernel reuses process IDs, and start times begin again with each boot. The zero value
// is no process.
//
// Task states of the driver hold it by its fields' names, claims and the records of MPS daemons by the names for JSON.
type ID struct {
	PID int `codec:"PID" json:"pid"`
	// StartTime is in clock ticks since boot: the 22nd field of /proc/PID/stat (proc_pid_stat(5)).
	StartTime uint64 `codec:"StartTime" json:"start_time"`
	// BootID is the content of /proc/sys/kernel/random/boot_id.
	BootID string `codec:"BootID" json:"boot_id"`
}

// userHZ is the clock ticks per second, for user space, on every architecture that Go supports.
const userHZ = 100

// BootID returns the kernel's name for this boot.
var BootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
})

// Find identifies the process that has an ID now. The error is os.ErrNotExist if there is none.
func Find(pid int) (ID, error) {
	stat, err := statOf(pid)
	if err != nil {
		return ID{}, err
	}
	boot, err := BootID()
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, StartTime: stat.startTime, BootID: boot}, nil
}

// Self identifies the calling process. It stays the same when the process executes another program.
func Self() (ID, error) { return Find(os.Getpid()) }

// Parent returns the ID of a process's parent.
func Parent(pid int) (int, error) {
	stat, err := statOf(pid)
	return stat.parent, err
}

// IsZero reports whether this identifies no process.
func (id ID) IsZero() bool { return id.PID <= 0 || id.StartTime == 0 }

// MayLive reports whether the process runs, or whether the kernel does not say. A zombie does not run.
func (id ID) MayLive() bool {
	lives, err := id.lives()
	return lives || err != nil
}

// Lives reports whether the process surely runs.
func (id ID) Lives() bool {
	lives, err := id.lives()
	return lives && err == nil
}

func (id ID) lives() (bool, error) {
	boot, err := BootID()
	if err == nil && boot != id.BootID {
		return false, nil
	}
	stat, statErr := statOf(id.PID)
	switch {
	case errors.Is(statErr, os.ErrNotExist) || errors.Is(statErr, unix.ESRCH):
		return false, nil
	case statErr != nil:
		return false, statErr
	case stat.startTime != id.StartTime || stat.ended():
		return false, nil
	}
	return true, err
}

// SinceBoot returns how long ago the machine booted, by a clock that nobody sets and that counts while it is suspended.
func SinceBoot() (time.Duration, error) {
	var sinceBoot unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot)
	return time.Duration(sinceBoot.Nano()), err
}

// StartedBefore reports whether the process started before a time.
func (id ID) StartedBefore(t time.Time) bool {
	sinceBoot, err := SinceBoot()
	age := sinceBoot - time.Duration(id.StartTime)*time.Second/userHZ
	return err == nil && time.Now().Add(-age).Before(t)
}

// Open returns a descriptor of the process (pidfd_open(2)), which never comes to mean another one. The error is
// os.ErrProcessDone if the process has ended.
func (id ID) Open() (*os.File, error) {
	if id.IsZero() {
		return nil, errors.New("the process is not known")
	}
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", id.PID, err)
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("process %d", id.PID))
	// Checked after opening: if the ID means the right process now, it did then.
	lives, err := id.lives()
	if err == nil && lives {
		return file, nil
	}
	file.Close()
	if err == nil {
		err = os.ErrProcessDone
	}
	return nil, err
}

// Signal sends the process a signal. That it has ended is not an error.
func (id ID) Signal(signal syscall.Signal) error {
	return id.whileOpen(func(file *os.File) error { return SignalTo(file, signal) })
}

// whileOpen calls f with a descriptor of the process, unless it has ended.
func (id ID) whileOpen(f func(*os.File) error) error {
	file, err := id.Open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return f(file)
}

// SignalTo sends a signal to the process of a descriptor. That it has ended is not an error.
func SignalTo(file *os.File, signal syscall.Signal) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = conn.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), signal, nil, 0) })
	if err = errors.Join(err, sendErr); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to %s: %w", unix.SignalName(signal), file.Name(), err)
	}
	return nil
}

// Wait blocks until the process has ended, which need not be a child, or until the context is done.
func (id ID) Wait(ctx context.Context) error {
	return id.whileOpen(func(file *os.File) error {
		defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
		if err := WaitFor(file); ctx.Err() == nil {
			return err
		}
		return ctx.Err()
	})
}

// WaitFor blocks until the process of a descriptor has ended, or until the descriptor is closed or its deadline passed.
func WaitFor(file *os.File) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

// HasChildren reports whether the process has children, or whether the kernel does not say.
func (id ID) HasChildren() bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue // no process
		}
		if stat, err := statOf(pid); err == nil && stat.parent == id.PID {
			return true
		}
	}
	return false
}
