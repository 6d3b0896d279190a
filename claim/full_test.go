package claim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
)

// smallDisk mounts a file system that is easily full.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		if os.Getenv("TRANCHE_REQUIRE_ROOT") == "1" {
			t.Fatalf("cannot mount a file system to fill: %v", err)
		}
		t.Skipf("only root can mount a file system to fill: %v", err)
	}
	t.Cleanup(func() { must.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fillUp leaves no room on a disk; the function that it returns makes some again.
func fillUp(t *testing.T, dir string) func() {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must.NoError(t, err)
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(page)
	}
	must.ErrorIs(t, err, syscall.ENOSPC)
	must.NoError(t, f.Close())
	return func() { must.NoError(t, os.Remove(path)) }
}

func TestFullDiskUnderTheLedger(t *testing.T) {
	disk := smallDisk(t)
	l := ledgerAt(t, disk, t.TempDir())
	ctx := context.Background()
	bound, _ := reserve(t, l, 0, 1)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, bound.ID, container("c1", init)))
	unbound, token := reserve(t, l, 2, 3)
	makeRoom := fillUp(t, disk)
	before := contents(t, l)

	_, _, err := l.Reserve(ctx, request(3, 4)) // would supersede the unbound one
	checkFull(t, err, l.claims)
	regions, err := os.ReadDir(l.regions)
	must.NoError(t, err)
	must.Len(t, 2, regions)
	checkFull(t, l.Bind(ctx, unbound.ID, container("c2", startProcess(t))), l.claims)
	endProcess(init)
	checkFull(t, l.Release(ctx, bound.ID, "c1"), l.claims)
	_, err = l.Sweep(ctx)
	checkFull(t, err, l.claims)

	must.Eq(t, before, contents(t, l))
	must.Eq(t, []string{bound.ID, unbound.ID}, ids(list(t, l)))
	_, err = l.Lookup(ctx, token)
	must.NoError(t, err)

	makeRoom()
	reserve(t, l, 3, 4)
	released, err := l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{bound.ID}, ids(released))
}

func TestFullDiskUnderTheRegions(t *testing.T) {
	disk := smallDisk(t)
	l := ledgerAt(t, t.TempDir(), disk)
	kept, _ := reserve(t, l, 0, 1)
	makeRoom := fillUp(t, disk)
	_, _, err := l.Reserve(context.Background(), request(1, 2))
	checkFull(t, err, l.regions)
	must.Eq(t, []string{kept.ID}, ids(list(t, l)))
	must.DirExists(t, l.regionPath(kept.ID))
	entries, err := os.ReadDir(l.regions)
	must.NoError(t, err)
	must.Len(t, 1, entries)
	makeRoom()
	reserve(t, l, 1, 2)
}

func checkFull(t *testing.T, err error, dir string) {
	t.Helper()
	must.ErrorIs(t, err, syscall.ENOSPC)
	must.ErrorContains(t, err, dir)
	must.ErrorContains(t, err, "free some space")
	var held *HeldError
	must.False(t, errors.As(err, &held))
}
