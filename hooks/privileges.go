package hooks

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that binding and releasing need: to read the ledger, the bundle and a process's status
// whoever owns them, and to unmount a region.
var kept = []uint{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN}

// closeProc closes /proc/PID of this process to those who are not root on the host. A container that shares its process
// IDs with the host or with another container sees the hook run, and could otherwise reach the program's file through
// /proc/PID/exe and write to it afterwards (CVE-2019-5736).
func closeProc() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close /proc of the hook to others: %w", err)
	}
	return nil
}

// dropPrivileges gives up, for the whole process, what the roles that run on the host do not need: they start no other
// program, make no device and change no network. An attacker who found a way to steer them would have no more than that.
func dropPrivileges() error {
	// Both are a thread's own, and Go moves its work between threads. Only a program without cgo can do it for all, which
	// tranche-hook is; a test with the race detector is not.
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		return fmt.Errorf("give up gaining privileges: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

func onAllThreads(trap, a1, a2, a3 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(trap, a1, a2, a3, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
