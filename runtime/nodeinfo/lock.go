package nodeinfo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long a refresh of somebody else is waited for when the context sets no deadline.
const lockPatience = time.Minute

// lock has one process at a time ask NVML. However many containers start at once when nothing is kept, the driver is asked
// once, and the others find what it said. The lock ends with its holder; what it returns gives it back.
func (p Place) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	path := filepath.Join(p.RunDir, "node.lock")
	type result struct {
		file *os.File
		err  error
	}
	got := make(chan result, 1)
	go func() {
		file, err := takeLock(path)
		got <- result{file, err}
	}()
	select {
	case r := <-got:
		return func() { r.file.Close() }, r.err
	case <-ctx.Done():
		// The kernel's wait cannot be called off. It ends when whoever asks NVML has its answer, or ends.
		go func() {
			if r := <-got; r.err == nil {
				r.file.Close()
			}
		}()
		return nil, fmt.Errorf("wait for another process to ask NVML, by the lock %s: %w", path, ctx.Err())
	}
}

func takeLock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err {
		case nil:
			return file, nil
		case unix.EINTR:
		default:
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}
