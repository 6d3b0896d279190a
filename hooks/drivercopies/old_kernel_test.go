package drivercopies

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// oldKernelVariable in the environment takes from the test binary, as tranche-hook, the system calls that kernels have
// had only since 5.2: those for mounts by descriptor and openat2.
const oldKernelVariable = "TRANCHE_TEST_OLD_KERNEL"

func init() {
	if os.Getenv(oldKernelVariable) == "" {
		return
	}
	if err := forgetSystemCalls(); err != nil {
		fmt.Fprintln(os.Stderr, "pretend an old kernel:", err)
		os.Exit(2)
	}
	if _, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{}); err != unix.ENOSYS { //nolint:errorlint // it is one
		fmt.Fprintln(os.Stderr, "pretend an old kernel: openat2 is still there:", err)
		os.Exit(2)
	}
}

func forgetSystemCalls() error {
	const loadNumber = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	filter := []unix.SockFilter{{Code: loadNumber, K: 0}}
	for _, call := range []uint32{
		unix.SYS_OPENAT2, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_FSCONFIG, unix.SYS_MOUNT_SETATTR,
	} {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: call},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
