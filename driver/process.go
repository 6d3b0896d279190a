package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
)

// process is a process of the host. The kernel uses process IDs again; with the start time and the boot one is never
// mistaken for another. The zero value is a process that is not known.
type process struct {
	PID int
	// StartTime is in ticks of the clock since the machine booted.
	StartTime uint64
	// BootID names the boot, as IDs and start times begin anew with each. Drivers up to 0.1 left it out of what they
	// wrote down; see taskState.identify.
	BootID string
}

// Where fields of /proc/PID/stat lie behind the command's name (proc_pid_stat(5)).
const (
	statState     = 0
	statParent    = 1
	statStartTime = 19
)

// findProcess returns the process that has the ID now.
func findProcess(pid int) (process, error) {
	fields, err := statFields(pid)
	if err != nil {
		return process{}, err
	}
	start, err := strconv.ParseUint(fields[statStartTime], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	boot, err := bootID()
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, StartTime: start, BootID: boot}, nil
}

// bootID is the kernel's name for this boot.
var bootID = sync.OnceValues(func() (string, error) {
	self, err := claim.ThisProcess()
	return self.BootID, err
})

// statFields reads /proc/PID/stat behind its second field, which may hold anything, blanks and brackets too.
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) <= statStartTime {
		return nil, fmt.Errorf("/proc/%d/stat is of an unknown form", pid)
	}
	return fields, nil
}

// parentOf returns the ID of a process's parent.
func parentOf(pid int) (int, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(fields[statParent])
}

// processIDs are the IDs of all processes.
func processIDs() (ids []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // The pattern is good.
	for _, dir := range dirs {
		ids = append(ids, filepath.Base(dir))
	}
	return ids
}

// hasChildren reports whether the process has children; also where that cannot be told.
func (p process) hasChildren() bool {
	for _, id := range processIDs() {
		pid, err := strconv.Atoi(id)
		if err != nil {
			return true
		}
		if parent, err := parentOf(pid); err == nil && parent == p.PID {
			return true
		}
	}
	return false
}

// userHZ is how many ticks the kernel tells user space for a second, on every architecture that Go runs on.
const userHZ = 100

// startedBefore reports whether the process started before a moment.
func (p process) startedBefore(t time.Time) bool {
	var sinceBoot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot); err != nil {
		return false
	}
	age := time.Duration(sinceBoot.Nano()) - time.Duration(p.StartTime)*time.Second/userHZ
	return time.Now().Add(-age).Before(t)
}

func (p process) known() bool { return p.PID > 0 && p.StartTime > 0 }

// alive says whether the process runs. One that has ended and waits for its parent does not, nor does one of another boot
// or of a boot that is not known.
func (p process) alive() bool {
	if boot, err := bootID(); err != nil || boot != p.BootID {
		return false
	}
	fields, err := statFields(p.PID)
	return err == nil && fields[statStartTime] == strconv.FormatUint(p.StartTime, 10) && fields[statState] != "Z"
}

// open returns a descriptor of the process, which stays its own when it ends. It is os.ErrProcessDone if it has.
func (p process) open() (*os.File, error) {
	if !p.known() {
		return nil, errors.New("the process is not known")
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("process %d", p.PID))
	// Looked at after opening: if it is the right one now, it was then.
	if !p.alive() {
		file.Close()
		return nil, os.ErrProcessDone
	}
	return file, nil
}

// signal sends the process a signal. That it has ended is no error.
func (p process) signal(signal syscall.Signal) error {
	file, err := p.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	err = unix.PidfdSendSignal(int(file.Fd()), signal, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(signal), p.PID, err)
	}
	return nil
}

// wait waits until the process has ended. It need not be a child of this one.
func (p process) wait(ctx context.Context) error {
	file, err := p.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	defer context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })()
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
