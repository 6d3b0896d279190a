package hooks

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that binding and releasing need: to read the ledger, the bundle and a process's status whatever
// their owner, and to unmount a region.
var kept = []uint{unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN}

// closeProc makes /proc/PID of this process inaccessible to users other than root on the host. A container that shares its
// PID namespace with the host or with another container sees the hook run, and could otherwise open the program's file through
// /proc/PID/exe and write to it afterwards (CVE-2019-5736).
func closeProc() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close /proc of the hook to others: %w", err)
	}
	return nil
}

// dropPrivileges drops, for the whole process, the privileges that the roles on the host do not need: they start no other
// program, create no device and change no network. This limits an attacker who finds a way to control them.
func dropPrivileges() error {
	// Both are per thread, and Go moves goroutines between threads. Only a program without cgo, which tranche-hook is, can set
	// them for all threads; a test with the race detector cannot.
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errors.Is(err, errors.ErrUnsupported) {
		return nil
	} else if err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
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

// dropCapabilities drops all capabilities except those in kept.
func dropCapabilities() error {
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(header, &sets[0]); err != nil {
		return err
	}
	var mask [2]uint32
	for _, capability := range kept {
		mask[capability/32] |= 1 << (capability % 32)
	}
	for i := range sets {
		sets[i].Permitted &= mask[i]
		sets[i].Effective = sets[i].Permitted
		sets[i].Inheritable = 0
	}
	//nolint:gosec // capset(2) takes pointers to these two, which live as long as the call
	return onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&sets[0])), 0)
}
