package hooks

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropCapabilities leaves the capabilities in kept, as far as the process has them.
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
