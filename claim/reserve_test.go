package claim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/region"
)

func TestReserve(t *testing.T) {
	l := newLedger(t)
	c, token := reserve(t, l, 0, 7)
	must.Eq(t, testGPU, c.GPU)
	must.Eq(t, slicesOf(0, 7), c.Slices)
	must.Eq(t, 8<<30, c.LimitBytes)
	must.Eq(t, OwnerNomad, c.Owner)
	must.Nil(t, c.Container)
	must.True(t, time.Since(c.Created) < time.Minute)
	must.Eq(t, "TRANCHE_CLAIM_"+c.ID, token.EnvName())

	found, err := l.Lookup(context.Background(), token)
	must.NoError(t, err)
	must.Eq(t, c, found)

	h, err := region.ReadHeader(l.regionPath(c.ID))
	must.NoError(t, err)
	must.Eq(t, region.Header{ClaimID: c.ID, GPUUUID: testGPU.UUID, LimitBytes: 8 << 30, ContextBytes: 300 << 20}, h)
}

func TestReserveKeepsTheTokenToItself(t *testing.T) {
	l := newLedger(t)
	c, token := reserve(t, l, 0, 0)
	for path, text := range contents(t, l) {
		must.StrNotContains(t, text, token.Reveal(), must.Sprint(path))
	}
	info, err := os.Stat(filepath.Join(l.claims, c.ID+".json"))
	must.NoError(t, err)
	must.Eq(t, 0o600, info.Mode().Perm())
	for _, dir := range []string{l.claims, l.regions} {
		info, err := os.Stat(dir)
		must.NoError(t, err)
		must.Eq(t, 0o700, info.Mode().Perm())
	}
}

func TestReserveRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Request)
		want   string
	}{
		"no GPU":           {func(r *Request) { r.GPU.UUID = "" }, "names no GPU"},
		"no slices":        {func(r *Request) { r.Slices = nil }, "names no slices"},
		"an unnamed slice": {func(r *Request) { r.Slices[1] = "" }, "without a name"},
		"a slice twice":    {func(r *Request) { r.Slices[1] = r.Slices[0] }, "names a slice twice"},
		"no limit":         {func(r *Request) { r.LimitBytes = 0 }, "has no limit"},
		"an endless UUID":  {func(r *Request) { r.GPU.UUID = string(make([]byte, 200)) }, "GPU UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			r := request(0, 3)
			tc.change(&r)
			_, _, err := l.Reserve(context.Background(), r)
			must.ErrorContains(t, err, tc.want)
			must.SliceEmpty(t, list(t, l))
		})
	}
}

// A place where no region can be made is an error, and no search for an ID that fits.
func TestReserveWithoutARunDirectory(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "run"), nil, 0o600))
	l, err := Open(Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")})
	must.NoError(t, err)
	_, _, err = l.Reserve(t.Context(), Request{GPU: GPU{UUID: "GPU-1"}, Slices: []string{"s"}, LimitBytes: 1 << 30, Owner: OwnerNomad})
	must.ErrorContains(t, err, filepath.Join(dir, "run"))
}

func TestReserveSupersedes(t *testing.T) {
	l := newLedger(t)
	whole, wholeToken := reserve(t, l, 0, 3)
	beside, _ := reserve(t, l, 4, 7)
	newer, _ := reserve(t, l, 2, 2)
	must.Eq(t, []string{newer.ID, beside.ID}, ids(list(t, l)))
	must.DirNotExists(t, l.regionPath(whole.ID))
	must.DirExists(t, l.regionPath(beside.ID))

	_, err := l.Lookup(context.Background(), wholeToken)
	must.ErrorIs(t, err, ErrUnknownToken)
	err = l.Bind(context.Background(), whole.ID, container("late", startProcess(t)))
	must.ErrorIs(t, err, ErrUnknownClaim)
	must.ErrorContains(t, err, whole.ID)
}

func TestReserveRespectsTheLiving(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	older, _ := reserve(t, l, 0, 3)
	dormant, _ := reserve(t, l, 4, 5)
	init := startProcess(t)
	must.NoError(t, l.Bind(ctx, older.ID, container("c1", init)))
	before := contents(t, l)

	_, _, err := l.Reserve(ctx, request(3, 5))
	var held *HeldError
	must.True(t, asError(err, &held))
	must.Eq(t, older.ID, held.Claim.ID)
	must.Eq(t, "c1", held.Claim.Container.ID)
	must.Eq(t, slicesOf(3, 3), held.Slices)
	must.True(t, held.Retriable())
	for _, part := range []string{older.ID, "container c1", slicesOf(3, 3)[0]} {
		must.ErrorContains(t, err, part)
	}
	must.Eq(t, before, contents(t, l))
	must.DirExists(t, l.regionPath(dormant.ID))

	// A release does not count against a process that lives on.
	must.NoError(t, l.Unbind(ctx, older.ID, *held.Claim.Container))
	_, _, err = l.Reserve(ctx, request(3, 5))
	must.True(t, asError(err, &held))

	endProcess(init)
	newer, _ := reserve(t, l, 3, 5)
	must.Eq(t, []string{newer.ID}, ids(list(t, l)))
}

func TestAZombieHoldsNothing(t *testing.T) {
	l := newLedger(t)
	older, _ := reserve(t, l, 0, 3)
	init := startProcess(t)
	must.NoError(t, l.Bind(context.Background(), older.ID, container("c1", init)))
	must.NoError(t, init.Process.Kill())
	waitForZombie(t, init.Process.Pid) // nobody waits for it, so it stays one
	reserve(t, l, 0, 3)
}

// waitForZombie waits for a process to end without collecting it.
func waitForZombie(t *testing.T, pid int) {
	t.Helper()
	must.NoError(t, waitid(pid))
	must.Eq(t, "Z", stateOf(t, pid))
}

func TestReserveThatDiedBeforeRemovingTheOlder(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	older, olderToken := reserve(t, l, 0, 3)
	path := filepath.Join(l.claims, older.ID+".json")
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	newer, _ := reserve(t, l, 0, 1)
	must.NoError(t, os.WriteFile(path, text, 0o600))
	must.NoError(t, os.MkdirAll(l.regionPath(older.ID), 0o755))

	_, err = l.Lookup(ctx, olderToken)
	must.ErrorIs(t, err, ErrUnknownToken)
	must.Eq(t, []string{newer.ID}, ids(list(t, l)))
	must.FileNotExists(t, path)
	must.DirNotExists(t, l.regionPath(older.ID))
}

func TestReserveThatDiedBeforeTheRecord(t *testing.T) {
	l := newLedger(t)
	kept, _ := reserve(t, l, 0, 3)
	h := region.Header{ClaimID: "0badcafe", GPUUUID: testGPU.UUID, LimitBytes: 1 << 30}
	must.NoError(t, region.Create(l.regionPath("0badcafe"), h))
	must.NoError(t, os.WriteFile(filepath.Join(l.claims, unfinishedName), []byte(`{"tranche_claim": 1, "id`), 0o600))

	claims, problems, err := l.List(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
	must.Eq(t, []string{kept.ID}, ids(claims))
	_, err = l.Sweep(context.Background())
	must.NoError(t, err)
	must.DirNotExists(t, l.regionPath("0badcafe"))
	must.DirExists(t, l.regionPath(kept.ID))
}

// Files that cannot be read as claims: reported, left as they are, and in nobody's way.
func TestBrokenRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil   func(text []byte) []byte
		want    string
		mayHold []string
	}{
		"empty":     {func([]byte) []byte { return nil }, "it is empty", nil},
		"zeros":     {func(x []byte) []byte { return make([]byte, len(x)) }, "truncated or no claim", nil},
		"cut early": {func(x []byte) []byte { return x[:20] }, "Which slices it held cannot be told", nil},
		"cut late":  {func(x []byte) []byte { return x[:len(x)-10] }, "It held the slices", slicesOf(4, 5)},
		"cut in the slices": {
			func(x []byte) []byte { return x[:indexOf(x, slicesOf(5, 5)[0])+8] },
			"at least the slices " + slicesOf(4, 4)[0] + "; the list is cut off", slicesOf(4, 4),
		},
		"of a later version": {
			func(x []byte) []byte { return replace(x, `"tranche_claim": 1`, `"tranche_claim": 2`) },
			"its format is 2", slicesOf(4, 5),
		},
		"with an unknown field": {
			func(x []byte) []byte { return replace(x, `"owner"`, `"proprietor"`) },
			"unknown field", slicesOf(4, 5),
		},
		"with a tail": {
			func(x []byte) []byte { return append(x, "{}"...) }, "after top-level value", slicesOf(4, 5),
		},
		"with another's hash": {
			func(x []byte) []byte { return replace(x, `"token_sha256": "`, `"token_sha256": "00`) },
			"does not match its file name", slicesOf(4, 5),
		},
		"without a limit": {
			func(x []byte) []byte { return replace(x, `"limit_bytes": 2147483648`, `"limit_bytes": 0`) },
			"lacks a GPU, slices or a limit", slicesOf(4, 5),
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t)
			ctx := context.Background()
			good, goodToken := reserve(t, l, 0, 3)
			bad, badToken := reserve(t, l, 4, 5)
			path := filepath.Join(l.claims, bad.ID+".json")
			text, err := os.ReadFile(path)
			must.NoError(t, err)
			spoiled := tc.spoil(text)
			must.NoError(t, os.WriteFile(path, spoiled, 0o600))

			claims, problems, err := l.List(ctx)
			must.NoError(t, err)
			must.Eq(t, []string{good.ID}, ids(claims))
			must.Len(t, 1, problems)
			must.Eq(t, path, problems[0].Path)
			must.Eq(t, bad.ID, problems[0].ClaimID)
			must.Eq(t, tc.mayHold, problems[0].MayHold)
			must.StrContains(t, problems[0].Reason, tc.want)
			must.StrContains(t, problems[0].Reason, "Remove the file")

			_, err = l.Lookup(ctx, badToken)
			must.ErrorIs(t, err, ErrUnknownToken)
			_, err = l.Lookup(ctx, goodToken)
			must.NoError(t, err)
			must.NoError(t, l.Bind(ctx, good.ID, container("c1", startProcess(t))))
			_, err = l.Sweep(ctx)
			must.NoError(t, err)
			must.DirExists(t, l.regionPath(bad.ID))
			reserve(t, l, 4, 5)

			still, err := os.ReadFile(path)
			must.NoError(t, err)
			must.Eq(t, string(spoiled), string(still))
		})
	}
}

func TestForeignFiles(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	good, _ := reserve(t, l, 0, 3)
	at := func(name string) string { return filepath.Join(l.claims, name) }
	must.NoError(t, os.WriteFile(at("notes.txt"), []byte("hello"), 0o600))
	must.NoError(t, os.WriteFile(at("DEADBEEF.json"), []byte("{}"), 0o600))
	must.NoError(t, os.Mkdir(at("00000001.json"), 0o700))
	linked, _ := reserve(t, l, 6, 7)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	must.NoError(t, os.Rename(at(linked.ID+".json"), elsewhere))
	must.NoError(t, os.Symlink(elsewhere, at(linked.ID+".json")))
	must.NoError(t, syscall.Mkfifo(at("00000003.json"), 0o600))
	must.NoError(t, os.WriteFile(at("00000004.json"), make([]byte, maxRecordBytes+1), 0o600))

	claims, problems, err := l.List(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{good.ID}, ids(claims))
	must.Len(t, 6, problems)
	_, err = l.Sweep(ctx)
	must.NoError(t, err)
	reserve(t, l, 4, 5)
	_, problems, err = l.List(ctx)
	must.NoError(t, err)
	must.Len(t, 6, problems)
}

// The record of a living container is spoiled: its processes still show in its region, and that protects its slices.
func TestBrokenRecordOfTheLiving(t *testing.T) {
	l := newLedger(t)
	bad, _ := reserve(t, l, 4, 5)
	path := filepath.Join(l.claims, bad.ID+".json")
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, text[:len(text)-10], 0o600))
	user := holdSlot(t, l.regionPath(bad.ID), 0)

	_, _, err = l.Reserve(context.Background(), request(5, 6))
	var held *HeldError
	must.True(t, asError(err, &held))
	must.Eq(t, bad.ID, held.Claim.ID)
	must.Eq(t, slicesOf(5, 5), held.Slices)
	must.ErrorContains(t, err, "not known to the ledger")

	must.NoError(t, user.Close())
	reserve(t, l, 5, 6)
}

func TestRecordIsReadableForPeople(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 0)
	text, err := os.ReadFile(filepath.Join(l.claims, c.ID+".json"))
	must.NoError(t, err)
	var fields map[string]any
	must.NoError(t, json.Unmarshal(text, &fields))
	must.MapContainsKeys(t, fields, []string{"tranche_claim", "id", "gpu", "slices", "limit_bytes", "owner", "created"})
	must.MapNotContainsKeys(t, fields, []string{"released", "container", "supersedes"})
}

func TestExplain(t *testing.T) {
	must.ErrorContains(t, explain("/x", syscall.ENOSPC), "df -h /x")
	must.ErrorContains(t, explain("/x", syscall.EROFS), "has to be writable")
	must.ErrorContains(t, explain("/x", syscall.EACCES), "as root")
	must.ErrorContains(t, explain("/x", syscall.ENOTDIR), "/x has to be a directory")
	must.ErrorContains(t, explain("/x", syscall.EIO), "see `dmesg`")
	plain := errors.New("plain")
	must.Eq(t, plain, explain("/x", plain))
}

// A refusal says how many slices were asked for, and names a few of them only: Nomad shows it to people, once an attempt.
func TestReserve_RefusalIsShort(t *testing.T) {
	const slices = 2000
	l := newLedger(t)
	held, _ := reserve(t, l, 0, slices-1)
	must.NoError(t, l.Bind(t.Context(), held.ID, container("c1", startProcess(t))))
	_, _, err := l.Reserve(t.Context(), request(0, slices-1))
	must.ErrorContains(t, err, "reserving 2000 slices of GPU ")
	must.ErrorContains(t, err, "/slice-000, ")
	must.ErrorContains(t, err, "and 1992 more are held by claim "+held.ID)
	must.Less(t, 1000, len(err.Error()))

	twice := request(0, slices-1)
	twice.Slices[1] = twice.Slices[0]
	_, _, err = l.Reserve(t.Context(), twice)
	must.ErrorContains(t, err, "twice")
	must.Less(t, 1000, len(err.Error()))
	_, _, err = l.ReserveAll(t.Context(), []Request{request(0, slices-1), request(1, slices-1)})
	must.ErrorContains(t, err, "conflict")
	must.Less(t, 2000, len(err.Error()))

	must.NoError(t, os.Truncate(l.recordPath(held.ID), 100_000))
	_, problems, err := l.List(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, problems)
	must.Greater(t, 1000, len(problems[0].MayHold))
	must.Less(t, 1500, len(problems[0].Reason))
}

// Also where the ledger could not even be looked at.
func TestReserve_RefusalCountsSlices(t *testing.T) {
	l := newLedger(t)
	must.NoError(t, os.MkdirAll(filepath.Dir(l.claims), 0o700))
	must.NoError(t, os.WriteFile(l.claims, nil, 0o600))
	_, _, err := l.Reserve(t.Context(), request(3, 3))
	must.ErrorContains(t, err, "reserving 1 slice of GPU ")
	_, err = l.ReserveFit(t.Context(), fitRequest(3<<30, gpuWith(0, 140)))
	must.ErrorContains(t, err, "reserving 3 slices")
}
