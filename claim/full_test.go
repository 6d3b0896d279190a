package claim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// smallDisk mounts a file system that is easily full.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	needs.Root(t, "to mount a file system to fill")
	must.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
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

// On a full disk no new claim is made that nothing goes for, and nothing changes then. All that is there continues: claims are
// bound, released and superseded.
func TestFullDiskUnderTheLedger(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, disk, t.TempDir())
	ctx := t.Context()
	bound, _ := reserve(t, l, 0, 1)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, bound.ID, container("c1", init)))
	unbound, _ := reserve(t, l, 2, 3)
	makeRoom := fillUp(t, disk)
	before := contents(t, l)

	_, _, err := l.Reserve(ctx, request(10, 11))
	checkFull(t, err, l.claims)
	_, err = l.ReserveFit(ctx, fitRequest(1<<30, gpuWith(0, 140)))
	checkFull(t, err, l.claims)
	must.Eq(t, before, contents(t, l))
	regions, err := os.ReadDir(l.regions)
	must.NoError(t, err)
	must.Len(t, 2, regions)

	second := startProcess(t)
	must.NoError(t, l.Bind(ctx, unbound.ID, container("c2", second)))
	endProcess(second)
	must.NoError(t, l.Release(ctx, unbound.ID, "c2"))
	superseding, token := reserve(t, l, 3, 4)
	endProcess(init)
	released, err := l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{bound.ID}, ids(released))
	must.Eq(t, []string{bound.ID, superseding.ID}, ids(list(t, l)))
	_, err = l.Lookup(ctx, token)
	must.NoError(t, err)

	reserve(t, l, 10, 10) // for which the dormant one goes
	must.SliceNotContains(t, ids(list(t, l)), bound.ID)
	_, _, err = l.Reserve(ctx, request(20, 20))
	checkFull(t, err, l.claims)
	makeRoom()
	reserve(t, l, 20, 20)
	must.Len(t, 3, list(t, l))
}

// churn has containers come and die by kill -9, one after the other, on the slices that Nomad takes to be free. It fails the
// test where one cannot have its claim.
func churn(t *testing.T, l *Ledger, rounds int) {
	t.Helper()
	for round := range rounds {
		from := round * 5 % 26
		c, _, err := l.Reserve(t.Context(), request(from, from+round%4))
		must.NoError(t, err, must.Sprintf("round %d", round))
		_, err = l.PrepareRegion(t.Context(), c.ID, fmt.Sprint("c", round), 0)
		must.NoError(t, err)
		init := startProcess(t)
		must.NoError(t, l.Bind(t.Context(), c.ID, container(fmt.Sprint("c", round), init)))
		endProcess(init)
		if round%3 == 0 {
			must.NoError(t, l.Release(t.Context(), c.ID, fmt.Sprint("c", round)))
		}
	}
}

// The records of dead containers fill a small disk, and whoever comes next has their slices all the same. A container that
// lives keeps its claim.
func TestFullDisk_DeadClaimsGoFirst(t *testing.T) {
	l := ledgerAt(t, smallDisk(t, "24k"), t.TempDir())
	living := livingClaim(t, l)
	churn(t, l, 20) // there is room for four
	checkLiving(t, l, living)
	_, _, err := l.ReserveAll(t.Context(), []Request{request(0, 29), wholeGPUs(1, 1)[0]})
	must.NoError(t, err, must.Sprint("all slices at once"))
	must.Len(t, 3, list(t, l))
}

// Claims whose containers never came fill it no longer than containers may take to come.
func TestFullDisk_UnboundClaimsGo(t *testing.T) {
	l := ledgerAt(t, smallDisk(t, "24k"), t.TempDir())
	var err error
	count := 0
	for ; err == nil; count++ {
		_, _, err = l.Reserve(t.Context(), request(count, count))
	}
	checkFull(t, err, l.claims)
	l.now = func() time.Time { return time.Now().Add(StartTimeout + time.Minute) }
	for slice := range 20 {
		reserve(t, l, count+slice, count+slice)
		l.now = func() time.Time { return time.Now().Add(time.Duration(slice+2) * (StartTimeout + time.Minute)) }
	}
}

// A process that dies at any moment of its work leaves a full disk in a state in which the next one continues.
func TestFullDisk_KilledInTheMidst(t *testing.T) {
	l := ledgerAt(t, smallDisk(t, "24k"), t.TempDir())
	living := livingClaim(t, l)
	rounds := 4
	if needs.Long() {
		rounds = 20
	}
	for range rounds {
		cmd, out, stderr := startRole(t, l, "churner")
		for range 8 { // by then the disk is full
			_, err := out.ReadString('\n')
			must.NoError(t, err, must.Sprint(stderr))
		}
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // another moment of its work each time
		endProcess(cmd)
		must.Eq(t, "", stderr.String())
		checkWhole(t, l)
		checkLiving(t, l, living)
		churn(t, l, 2)
	}
}

// A ledger on a file system that has become read-only is still to be seen. Nothing in it changes, and nobody says that it did.
func TestReadOnlyDisk(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, disk, t.TempDir())
	dormant, _ := reserve(t, l, 0, 1)
	init := startProcess(t)
	must.NoError(t, l.Bind(t.Context(), dormant.ID, container("c1", init)))
	endProcess(init)
	made, _ := reserveAll(t, l, 1, groupSize)
	announced := filepath.Join(l.claims, groupName) // as if its maker had died in the midst of it
	must.NoError(t, os.WriteFile(announced, []byte(made[0].ID+"\n"+made[1].ID+"\n"), 0o600))
	must.NoError(t, syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))

	want := []string{dormant.ID, made[2].ID}
	must.Eq(t, want, ids(list(t, l)))
	_, _, err := l.Reserve(t.Context(), request(1, 2))
	must.ErrorIs(t, err, syscall.EROFS)
	must.ErrorIs(t, l.Bind(t.Context(), made[2].ID, container("c2", startProcess(t))), syscall.EROFS)
	must.ErrorIs(t, l.Release(t.Context(), dormant.ID, "c1"), syscall.EROFS)
	must.ErrorIs(t, l.Drop(t.Context(), dormant.ID), syscall.EROFS)
	must.ErrorIs(t, l.DropInUse(t.Context(), dormant.ID), syscall.EROFS)
	must.Eq(t, want, ids(list(t, l)))

	must.NoError(t, syscall.Mount("", disk, "", syscall.MS_REMOUNT, ""))
	must.Eq(t, want, ids(list(t, l)))
	must.FileNotExists(t, announced)
	churn(t, l, 3)
}

func TestFullDiskUnderTheRegions(t *testing.T) {
	disk := smallDisk(t, "512k")
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

// Whether claims can be made is known beforehand, and why not; what is there already has nothing to do with it.
func TestCheckUsable(t *testing.T) {
	l := newLedger(t)
	must.NoError(t, l.CheckUsable(t.Context()))
	must.SliceEmpty(t, list(t, l))

	for name, dirs := range map[string][2]string{
		"state directory": {"/proc/version", t.TempDir()}, "run directory": {t.TempDir(), "/proc/version"},
	} {
		l := ledgerAt(t, dirs[0], dirs[1])
		err := l.CheckUsable(t.Context())
		must.ErrorIs(t, err, syscall.ENOTDIR, must.Sprint(name))
		must.ErrorContains(t, err, "/proc/version")
		_, _, err = l.Reserve(t.Context(), request(1, 1))
		must.Error(t, err)
		var access *AccessError
		must.True(t, !errors.As(err, &access) || access.Lasts(), must.Sprint("only an operator can change that"))
	}
	lock := filepath.Join(l.claims, lockName)
	must.NoError(t, os.Remove(lock))
	must.NoError(t, os.Mkdir(lock, 0o700))
	must.ErrorIs(t, l.CheckUsable(t.Context()), syscall.EISDIR)
}

// It says so of a full disk where a reservation says so, and of no other.
func TestCheckUsable_FullDisk(t *testing.T) {
	l := ledgerAt(t, smallDisk(t, "24k"), t.TempDir())
	var inits []*exec.Cmd
	for slice := 0; ; slice++ {
		must.Less(t, 10, slice, must.Sprint("the disk is never full"))
		usable := l.CheckUsable(t.Context())
		c, _, err := l.Reserve(t.Context(), request(slice, slice))
		if err != nil {
			checkFull(t, err, l.claims)
			checkFull(t, usable, l.claims)
			break
		}
		must.NoError(t, usable)
		init := startProcess(t)
		must.NoError(t, l.Bind(t.Context(), c.ID, container("c", init)))
		inits = append(inits, init)
	}
	endProcess(inits[0])
	must.NoError(t, l.CheckUsable(t.Context()), must.Sprint("the claim of the container that has ended goes"))
	reserve(t, l, 20, 20)
}

// A claim whose container is on its way is not evicted, so it makes no room.
func TestCheckUsable_FullDiskOnTheWay(t *testing.T) {
	l := ledgerAt(t, smallDisk(t, "24k"), t.TempDir())
	for slice := 0; ; slice++ {
		must.Less(t, 10, slice, must.Sprint("the disk is never full"))
		usable := l.CheckUsable(t.Context())
		if _, _, err := l.Reserve(t.Context(), request(slice, slice)); err != nil {
			checkFull(t, err, l.claims)
			checkFull(t, usable, l.claims)
			break
		}
		must.NoError(t, usable)
	}
}

func TestCheckUsable_ReadOnlyDisk(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, disk, t.TempDir())
	reserve(t, l, 0, 0)
	must.NoError(t, syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	must.ErrorIs(t, l.CheckUsable(t.Context()), syscall.EROFS)
}

func TestCheckUsable_FullRunDir(t *testing.T) {
	disk := smallDisk(t, "512k")
	l := ledgerAt(t, t.TempDir(), disk)
	makeRoom := fillUp(t, disk)
	checkFull(t, l.CheckUsable(t.Context()), l.regions)
	makeRoom()
	must.NoError(t, l.CheckUsable(t.Context()))
}
