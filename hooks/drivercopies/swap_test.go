package drivercopies

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// While the hook works, files and directories of the image are exchanged for links that lead out of it, again and again
// (CVE-2024-0132, CVE-2025-23267). Whatever the hook gets of it, nothing outside is opened, changed or mounted over.
func TestOvermount_SwappedLinks(t *testing.T) {
	i := newImage(t)
	i.laySwaps()
	watch := watchTree(t, i.outside)
	stop := i.swap()
	defer stop()
	done, overmounted := 0, 0
	for range 20 {
		if _, err := i.run(""); err != nil {
			must.ErrorContains(t, err, errorPrefix)
			continue
		}
		done++
		overmounted += len(i.overmounted())
	}
	stop()
	must.Eq(t, nil, watch(), must.Sprint("files outside the container were touched"))
	must.Positive(t, done, must.Sprint("no run of the hook came to its end"))
	must.Positive(t, overmounted, must.Sprint("no run of the hook has overmounted anything"))
}

// swaps are the paths that are exchanged for links to the same path outside.
var swaps = []string{
	"usr/lib/libcuda.so.1", "usr/local/cuda/compat", "usr/local/nvidia", "etc/ld.so.conf", "etc/ld.so.cache",
	"opt",
}

func (i *image) laySwaps() {
	i.t.Helper()
	for _, name := range []string{
		"usr/lib/libcuda.so.1", "usr/local/cuda/compat/libcuda.so.1", "usr/local/nvidia/lib/libcuda.so.1",
		"opt/conf/libcuda.so.1", "opt/secret/libcuda.so.1",
	} {
		i.write(name, "copy\n")
		i.writeOutside(name, "host's\n")
	}
	i.write("etc/ld.so.conf", "/opt/conf\n")
	i.writeOutside("etc/ld.so.conf", "/opt/secret\n")
	i.write("etc/ld.so.cache", "cache")
	i.writeOutside("etc/ld.so.cache", "cache")
	for n, name := range swaps {
		i.link(filepath.Join(i.outside, name), swapOf(n, name))
	}
}

func (i *image) writeOutside(name, content string) {
	i.t.Helper()
	file := filepath.Join(i.outside, name)
	must.NoError(i.t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.NoError(i.t, os.WriteFile(file, []byte(content), 0o644))
}

// swapOf is where the link waits, beside what it is exchanged for.
func swapOf(n int, name string) string { return fmt.Sprintf("%s.swap%d", name, n) }

// swap exchanges them until it is stopped.
func (i *image) swap() (stop func()) {
	ctx, cancel := context.WithCancel(i.t.Context())
	var swapping sync.WaitGroup
	for n, name := range swaps {
		a, b := i.path(name), i.path(swapOf(n, name))
		swapping.Go(func() {
			for ctx.Err() == nil {
				err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
				// A directory above may be away just now.
				if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
					i.t.Errorf("exchange %s and %s: %v", a, b, err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		swapping.Wait()
	}
}

// watchTree notes what is opened, read, written or made in a directory from now on. A path that is looked up only
// (O_PATH) is no event.
func watchTree(t *testing.T, dir string) (events func() []string) {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(watch) })
	must.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		_, err = unix.InotifyAddWatch(watch, path, unix.IN_ALL_EVENTS)
		return err
	}))
	drain := func() []string {
		buffer := make([]byte, 64<<10)
		n, err := unix.Read(watch, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		must.NoError(t, err)
		return []string{fmt.Sprintf("%q", buffer[:n])}
	}
	for drain() != nil { // what adding the watches has caused
	}
	return drain
}
