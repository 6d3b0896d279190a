package claim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/region"
)

func TestBind(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, token := reserve(t, l, 0, 1)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init))) // the same one again

	found, err := l.Lookup(ctx, token)
	must.NoError(t, err)
	must.Eq(t, "c1", found.Container.ID)
	must.Eq(t, init.Process.Pid, found.Container.InitPID)
	must.Positive(t, found.Container.InitStartTime)
	must.NotEq(t, "", found.Container.BootID)
	must.True(t, Alive(*found.Container))

	other := startProcess(t)
	for name, c2 := range map[string]Container{
		"another container":       container("c2", other),
		"another of the same ID":  container("c1", other),
		"of another runtime":      {Runtime: "crun", ID: "c1", InitPID: init.Process.Pid},
		"another, same processes": container("c2", init),
	} {
		err := l.Bind(ctx, c.ID, c2)
		var bound *BoundError
		must.True(t, asError(err, &bound), must.Sprint(name))
		must.Eq(t, c.ID, bound.Claim.ID)
		must.ErrorContains(t, err, "container c1")
		must.StrNotContains(t, err.Error(), token.Reveal())
	}
	after, err := l.Lookup(ctx, token)
	must.NoError(t, err)
	must.Eq(t, found.Container.InitPID, after.Container.InitPID)
	must.Eq(t, "c1", after.Container.ID)
}

func TestBindRefuses(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	gone := startProcess(t)
	endProcess(gone)
	live := startProcess(t)
	for name, tc := range map[string]struct {
		id   string
		c    Container
		want string
	}{
		"no such claim":   {"0badcafe", container("c1", live), "claim 0badcafe"},
		"no container ID": {c.ID, container("", live), "has no ID"},
		"no process":      {c.ID, Container{Runtime: "runc", ID: "c1"}, "init process 0"},
		"ended process":   {c.ID, container("c1", gone), "looking for its init process"},
		"another boot":    {c.ID, Container{ID: "c1", InitPID: live.Process.Pid, BootID: "x"}, "has ended"},
		"another start":   {c.ID, Container{ID: "c1", InitPID: live.Process.Pid, InitStartTime: 1}, "has ended"},
	} {
		must.ErrorContains(t, l.Bind(ctx, tc.id, tc.c), tc.want, must.Sprint(name))
	}
	must.Nil(t, list(t, l)[0].Container)
}

// Nomad restarts a task in place without a new reservation: the same claim serves the next container.
func TestRestartInPlace(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, token := reserve(t, l, 0, 1)
	dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
	must.NoError(t, err)
	first := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", first)))
	scribble(t, dir)
	endProcess(first)
	must.NoError(t, l.Release(ctx, c.ID, "c1"))

	found, err := l.Lookup(ctx, token)
	must.NoError(t, err)
	must.False(t, found.Released.IsZero())
	dir, err = l.PrepareRegion(ctx, c.ID, "c2", 0)
	must.NoError(t, err)
	must.Zero(t, peakBytes(t, dir)) // a region of its own, not what the first has left
	second := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c2", second)))

	must.NoError(t, l.Release(ctx, c.ID, "c1")) // late, and for the container before
	found, err = l.Lookup(ctx, token)
	must.NoError(t, err)
	must.Eq(t, "c2", found.Container.ID)
	must.True(t, found.Released.IsZero())
	must.Eq(t, c.LimitBytes, found.LimitBytes)
	must.DirExists(t, dir)
}

// The container was killed along with everything that would have released its claim.
func TestRestartInPlaceWithoutRelease(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
	must.NoError(t, err)
	first := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", first)))
	scribble(t, dir)
	endProcess(first)

	dir, err = l.PrepareRegion(ctx, c.ID, "c2", 0)
	must.NoError(t, err)
	must.Zero(t, peakBytes(t, dir))
	mounted, err := os.Open(filepath.Join(dir, region.UsageFile)) // kept open, so that its inode isn't used again
	must.NoError(t, err)
	defer mounted.Close()
	before, err := mounted.Stat()
	must.NoError(t, err)
	_, err = l.PrepareRegion(ctx, c.ID, "c2", 0) // may be mounted by now, so it stays
	must.NoError(t, err)
	after, err := os.Stat(filepath.Join(dir, region.UsageFile))
	must.NoError(t, err)
	must.True(t, os.SameFile(before, after))
	must.NoError(t, l.Bind(ctx, c.ID, container("c2", startProcess(t))))
}

func TestReleaseIsForOwnContainer(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, l.Release(ctx, c.ID, "c1")) // never bound
	must.True(t, list(t, l)[0].Released.IsZero())
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", startProcess(t))))
	must.NoError(t, l.Release(ctx, c.ID, "c2"))
	must.True(t, list(t, l)[0].Released.IsZero())
	must.NoError(t, l.Release(ctx, "0badcafe", "c1")) // superseded long ago
}

// A container's ID alone says too little: one of another runtime, or a late message, may have the same.
func TestReleaseLeavesALivingContainer(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
	must.NoError(t, err)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))
	must.NoError(t, l.Release(ctx, c.ID, "c1"))
	must.True(t, list(t, l)[0].Released.IsZero())
	must.DirExists(t, dir)

	endProcess(init)
	must.NoError(t, l.Release(ctx, c.ID, "c1"))
	must.False(t, list(t, l)[0].Released.IsZero())
}

func TestUnbind(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	own, other := startProcess(t), startProcess(t)
	must.NoError(t, l.Unbind(ctx, c.ID, container("c1", own))) // never bound
	must.True(t, list(t, l)[0].Released.IsZero())
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", own)))
	for _, foreign := range []Container{container("c2", own), container("c1", other), {ID: "c1", InitPID: own.Process.Pid}} {
		must.NoError(t, l.Unbind(ctx, c.ID, foreign))
		must.True(t, list(t, l)[0].Released.IsZero())
	}
	must.NoError(t, l.Unbind(ctx, c.ID, container("c1", own)))
	must.False(t, list(t, l)[0].Released.IsZero())
	must.NoError(t, l.Unbind(ctx, "0badcafe", container("c1", own))) // superseded long ago
}

func TestReboot(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, token := reserve(t, l, 0, 1)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))

	// The next boot: another ID, /run empty, and the process ID belongs to somebody else who lives.
	spoil(t, l, c.ID, func(r *record) { r.Container.BootID = "another-boot" })
	must.NoError(t, os.RemoveAll(filepath.Dir(l.regions)))

	released, err := l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{c.ID}, ids(released))
	dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
	must.NoError(t, err)
	h, err := region.ReadHeader(dir)
	must.NoError(t, err)
	must.Eq(t, c.LimitBytes, h.LimitBytes)
	_, err = l.Lookup(ctx, token)
	must.NoError(t, err)
	must.NoError(t, l.Bind(ctx, c.ID, container("c2", startProcess(t))))
}

func TestPrepareRegion_CorrectsTheRegion(t *testing.T) {
	ctx := context.Background()
	t.Run("states the limit of the ledger", func(t *testing.T) {
		l := newLedger(t)
		c, _ := reserve(t, l, 0, 1)
		dir := l.regionPath(c.ID)
		must.NoError(t, region.SetLimit(dir, 1))
		_, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
		must.NoError(t, err)
		h, err := region.ReadHeader(dir)
		must.NoError(t, err)
		must.Eq(t, c.LimitBytes, h.LimitBytes)
	})
	t.Run("replaces a broken region", func(t *testing.T) {
		l := newLedger(t)
		c, _ := reserve(t, l, 0, 1)
		must.NoError(t, os.Truncate(filepath.Join(l.regionPath(c.ID), region.LimitFile), 7))
		dir, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
		must.NoError(t, err)
		_, err = region.ReadHeader(dir)
		must.NoError(t, err)
	})
	t.Run("does not pull a region from under the living", func(t *testing.T) {
		l := newLedger(t)
		c, _ := reserve(t, l, 0, 1)
		dir := l.regionPath(c.ID)
		holdSlot(t, dir, 0)
		must.NoError(t, os.Truncate(filepath.Join(dir, region.LimitFile), 7))
		_, err := l.PrepareRegion(ctx, c.ID, "c1", 0)
		must.ErrorContains(t, err, "its container still uses it")
	})
}

func TestUsage(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, os.RemoveAll(l.regionPath(c.ID)))
	u, err := l.Usage(ctx, c.ID) // nobody can use what is not there
	must.NoError(t, err)
	must.Eq(t, c.LimitBytes, u.LimitBytes)
	must.Zero(t, u.UsedBytes)

	must.NoError(t, l.Bind(ctx, c.ID, container("c1", startProcess(t))))
	_, err = l.Usage(ctx, c.ID) // somebody may, and what is not known is not zero
	must.ErrorIs(t, err, os.ErrNotExist)
	must.ErrorContains(t, err, c.ID)

	_, err = l.Usage(ctx, "0badcafe")
	must.ErrorIs(t, err, ErrUnknownClaim)
}

func TestSweep(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	unbound, _ := reserve(t, l, 0, 0)
	living, _ := reserve(t, l, 1, 1)
	must.NoError(t, l.Bind(ctx, living.ID, container("c1", startProcess(t))))
	dead, _ := reserve(t, l, 2, 2)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, dead.ID, container("c2", init)))
	endProcess(init)

	released, err := l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{dead.ID}, ids(released))
	must.DirNotExists(t, l.regionPath(dead.ID))
	again, err := l.Sweep(ctx)
	must.NoError(t, err)
	must.SliceEmpty(t, again)
	must.Len(t, 3, list(t, l))

	l.now = func() time.Time { return time.Now().Add(DormantFor - time.Minute) }
	_, err = l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{unbound.ID, living.ID, dead.ID}, ids(list(t, l)))
	l.now = func() time.Time { return time.Now().Add(DormantFor + time.Minute) }
	_, err = l.Sweep(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{living.ID}, ids(list(t, l)))
	must.DirNotExists(t, l.regionPath(unbound.ID))
	must.DirExists(t, l.regionPath(living.ID))
}

func TestSweepKeepsRegionsInUse(t *testing.T) {
	l := newLedger(t)
	reserve(t, l, 0, 0)
	h := region.Header{ClaimID: "0badcafe", GPUUUID: testGPU.UUID, LimitBytes: 1 << 30}
	must.NoError(t, region.Create(l.regionPath("0badcafe"), h))
	user := holdSlot(t, l.regionPath("0badcafe"), 3)
	_, err := l.Sweep(context.Background())
	must.NoError(t, err)
	must.DirExists(t, l.regionPath("0badcafe"))
	must.NoError(t, user.Close())
	_, err = l.Sweep(context.Background())
	must.NoError(t, err)
	must.DirNotExists(t, l.regionPath("0badcafe"))
}

// A region that a process of the container still uses when its claim is released goes once nobody does.
func TestSweep_RemovesRegionsOfReleasedClaims(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, _ := reserve(t, l, 0, 0)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, c.ID, container("c1", init)))
	endProcess(init)
	user := holdSlot(t, l.regionPath(c.ID), 3)
	sweep := func() {
		t.Helper()
		_, err := l.Sweep(ctx)
		must.NoError(t, err)
	}
	sweep()
	later(l, BindWithin+time.Minute)
	sweep()
	must.DirExists(t, l.regionPath(c.ID), must.Sprint("it is used"))
	must.NoError(t, user.Close())
	sweep()
	must.DirNotExists(t, l.regionPath(c.ID))

	_, err := l.PrepareRegion(ctx, c.ID, "c2", 0)
	must.NoError(t, err)
	sweep()
	must.DirExists(t, l.regionPath(c.ID), must.Sprint("the next container counts on it"))
	later(l, BindWithin+time.Minute)
	sweep()
	must.DirNotExists(t, l.regionPath(c.ID), must.Sprint("it never came"))
	must.Eq(t, []string{c.ID}, ids(list(t, l)))
}

func TestFromEnv(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	second := Request{GPU: GPU{UUID: "GPU-b", Index: 1}, Slices: []string{"GPU-b/slice-000"}, LimitBytes: 1 << 30}
	b, bToken, err := l.Reserve(ctx, second)
	must.NoError(t, err)
	a, aToken := reserve(t, l, 0, 1)
	for aToken.EnvName() < bToken.EnvName() { // so that the names' order is another than the GPUs'
		a, aToken = reserve(t, l, 0, 1)
	}
	env := func(more ...string) map[string]string {
		e := map[string]string{"PATH": "/bin", aToken.EnvName(): aToken.Reveal(), bToken.EnvName(): bToken.Reveal()}
		for i := 0; i < len(more); i += 2 {
			e[more[i]] = more[i+1]
		}
		return e
	}
	found, err := l.FromEnv(ctx, env())
	must.NoError(t, err)
	must.Eq(t, []string{a.ID, b.ID}, ids(found)) // by GPU
	found, err = l.FromEnv(ctx, map[string]string{"PATH": "/bin"})
	must.NoError(t, err)
	must.SliceEmpty(t, found)

	stranger := newToken()
	for name, tc := range map[string]struct {
		variable, value, want string
	}{
		"no token":             {EnvPrefix + "11111111", "hello", "holds no claim token"},
		"under another's name": {aToken.EnvName(), bToken.Reveal(), "of another claim than its name says"},
		"of no claim":          {stranger.EnvName(), stranger.Reveal(), "no claim in the ledger"},
	} {
		found, err := l.FromEnv(ctx, env(tc.variable, tc.value))
		must.ErrorContains(t, err, tc.want, must.Sprint(name))
		must.ErrorContains(t, err, tc.variable)
		must.StrNotContains(t, err.Error(), tc.value)
		must.SliceEmpty(t, found)
	}
	_, err = l.FromEnv(ctx, env(stranger.EnvName(), stranger.Reveal()))
	must.True(t, errors.Is(err, ErrUnknownToken))
}

// A token that shares the ID with a claim but not the rest of the hash.
func TestIDIsNotEnough(t *testing.T) {
	l := newLedger(t)
	c, token := reserve(t, l, 0, 0)
	spoil(t, l, c.ID, func(r *record) { r.TokenSHA256 = r.TokenSHA256[:8] + strings.Repeat("0", 56) })
	must.Len(t, 1, list(t, l))
	_, err := l.Lookup(context.Background(), token)
	must.ErrorIs(t, err, ErrUnknownToken)
}
