// Package thread runs functions on threads of their own, for what the kernel keeps per thread: namespaces, the root and
// the working directory.
package thread

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on a thread that ends with it, whatever f has changed about the thread. f must not start goroutines that rely
// on these changes.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The process's first thread never ends, and /proc/self is its. As long as this goroutine holds it, another
			// one gets another.
			defer runtime.UnlockOSThread()
			done <- Run(f)
			return
		}
		done <- f()
		// Not unlocked: the thread ends with this goroutine.
	}()
	return <-done
}

// RunWithMounts runs f like Run, on a thread with mounts of its own. They end with the thread, so that a process that is
// killed meanwhile leaves none.
func RunWithMounts(f func() error) error {
	return Run(func() error {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			return fmt.Errorf("make a mount namespace: %w", err)
		}
		return f()
	})
}
