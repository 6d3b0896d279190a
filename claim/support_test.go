package claim

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/region"
)

func indexOf(text []byte, part string) int { return strings.Index(string(text), part) }

func replace(text []byte, from, to string) []byte {
	return []byte(strings.Replace(string(text), from, to, 1))
}

// spoil rewrites a record behind the ledger's back.
func spoil(t *testing.T, l *Ledger, id string, change func(*record)) {
	t.Helper()
	snap, _, err := readSnapshot(l.claims, nil)
	must.NoError(t, err)
	r, err := snap.get(id)
	must.NoError(t, err)
	change(r)
	must.NoError(t, l.replace(snap, r))
	must.NoError(t, l.syncChanged(snap))
}

// holdSlot takes a slot of a region as a process that uses it does.
func holdSlot(t *testing.T, dir string, slot int) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, region.UsageFile), os.O_RDWR, 0)
	must.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: 4096 + int64(slot)*64, Len: 1}
	must.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	return f
}

// scribble leaves a mark in a region, as a container's processes may.
func scribble(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, region.UsageFile), os.O_RDWR, 0)
	must.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, 77), 136)
	must.NoError(t, err)
	must.Eq(t, 77<<16, peakBytes(t, dir))
}

func peakBytes(t *testing.T, dir string) uint64 {
	t.Helper()
	u, err := region.Read(dir)
	must.NoError(t, err)
	return u.PeakBytes
}

// waitid waits for a process to end and leaves it a zombie.
func waitid(pid int) error {
	var info unix.Siginfo
	return unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
}

func prepare(l *Ledger, id, containerID string, gpuHostMemoryBytes uint64) error {
	_, err := l.PrepareRegion(context.Background(), id, containerID, gpuHostMemoryBytes)
	return err
}
