package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// failSync has the sync with this number fail, counted from 0, as the disk makes it fail; those before and after it succeed.
// It returns how many there were.
func failSync(l *Ledger, number int) (count *int) {
	count = new(int)
	l.sync = func(f *os.File) error {
		*count++
		if *count == number+1 {
			return &os.PathError{Op: "sync", Path: f.Name(), Err: syscall.EIO}
		}
		return f.Sync()
	}
	return count
}

// checkSyncFailures has each sync of a change fail in turn, each in a ledger of its own, until there is none left to fail.
func checkSyncFailures(t *testing.T, prepare func(*Ledger), change func(*Ledger) error) {
	t.Helper()
	for number := 0; ; number++ {
		l := newLedger(t)
		prepare(l)
		before := records(t, l)
		count := failSync(l, number)
		err := change(l)
		if *count <= number {
			must.NoError(t, err)
			must.Greater(t, 0, number, must.Sprint("nothing was synced"))
			return
		}
		must.ErrorIs(t, err, syscall.EIO)
		other := ledgerAt(t, filepath.Dir(l.claims), filepath.Dir(l.regions)) // which knows the files only
		must.Eq(t, before, records(t, other), must.Sprintf("sync %d failed", number))
		must.NoError(t, change(l), must.Sprint("the same again, on a disk that works again"))
	}
}

// records are the claims of a ledger as others find them.
func records(t *testing.T, l *Ledger) []Claim {
	t.Helper()
	var all []Claim
	for _, c := range list(t, l) {
		all = append(all, *c)
	}
	return all
}

func TestReserve_SyncFails(t *testing.T) {
	checkSyncFailures(t,
		func(l *Ledger) { reserve(t, l, 0, 3) },
		func(l *Ledger) error { _, _, err := l.Reserve(t.Context(), request(2, 5)); return err })
}

func TestReserveAll_SyncFails(t *testing.T) {
	checkSyncFailures(t,
		func(l *Ledger) { reserve(t, l, 0, 3) },
		func(l *Ledger) error { _, _, err := l.ReserveAll(t.Context(), wholeGPUs(0, 2)); return err })
}

func TestReserveFit_SyncFails(t *testing.T) {
	checkSyncFailures(t,
		func(l *Ledger) { reserve(t, l, 0, 3) },
		func(l *Ledger) error {
			_, err := l.ReserveFit(t.Context(), fitRequest(1<<30, gpuWith(0, 140)))
			return err
		})
}

func TestCompleteMIG_SyncFails(t *testing.T) {
	var id string
	checkSyncFailures(t,
		func(l *Ledger) {
			c, _, err := l.Reserve(t.Context(), toCome(2, 2, slicesOf(0, 3)...))
			must.NoError(t, err)
			id = c.ID
		},
		func(l *Ledger) error { return l.CompleteMIG(t.Context(), id, madeInstance, 5, 1) })
}

// Binding and releasing do not have others wait for the disk: nothing is synced while the lock is held. Their records are
// synced all the same, since a record that was renamed but not written may be empty after a power cut.
func TestBind_SyncsWithoutTheLock(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	init := startProcess(t)
	synced := 0
	l.sync = func(f *os.File) error {
		synced++
		lock, err := os.Open(filepath.Join(l.claims, lockName))
		must.NoError(t, err)
		defer lock.Close()
		must.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB), must.Sprintf("synced %s under the lock", f.Name()))
		return f.Sync()
	}
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))
	must.Eq(t, 1, synced)
	must.NoError(t, l.Unbind(ctx, c.ID, container("c1", init)))
	endProcess(init)
	must.NoError(t, prepare(l, c.ID, "c2", 1<<20))
	init = startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c2", init)))
	must.Eq(t, 4, synced)
	endProcess(init)
	must.NoError(t, l.Release(ctx, c.ID, "c2"))
	must.Eq(t, 5, synced)
	init = startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c3", init)))
	endProcess(init)
	_, err := l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, 7, synced)
	must.Eq(t, 1, len(list(t, l)))
	must.Eq(t, 7, synced, must.Sprint("a look changes nothing"))
}

// A binding that may not be on the disk is none that a container should start with.
func TestBind_SyncFails(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	failSync(l, 0)
	init := startProcess(t)
	err := l.Bind(t.Context(), c.ID, container("c1", init))
	must.ErrorIs(t, err, syscall.EIO)
	must.ErrorContains(t, err, c.ID)
	must.NoError(t, l.Unbind(t.Context(), c.ID, container("c1", init)))
	endProcess(init)
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c2", startProcess(t))))
}

// A directory that is removed after it was made leaves no lock to take. A change without one could give slices out twice.
func TestReserve_NeverWithoutTheLock(t *testing.T) {
	l := newLedger(t)
	removed := filepath.Join(t.TempDir(), "removed")
	must.NoError(t, os.Mkdir(removed, 0o700))
	dir, err := os.Open(removed)
	must.NoError(t, err)
	defer dir.Close()
	must.NoError(t, os.Remove(removed))
	must.NoError(t, os.MkdirAll(filepath.Dir(l.claims), 0o700))
	must.NoError(t, os.Symlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), l.claims)) // which is there, and takes no files
	changed := false
	err = l.write(t.Context(), func(*snapshot) error { changed = true; return nil })
	must.False(t, changed)
	must.ErrorIs(t, err, os.ErrNotExist)
	var access *AccessError
	must.True(t, errors.As(err, &access))
	must.StrContains(t, err.Error(), "opening the ledger")
	must.SliceEmpty(t, list(t, l), must.Sprint("there is nothing to be seen in it"))
}
