package claim

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// fromMemory is an owner that no file in these tests has: a record with it was not read.
const fromMemory = "from memory"

// seenNow is what is known of the ledger's files as they are, however fresh they are, with the owner fromMemory.
func seenNow(t *testing.T, l *Ledger) recordCache {
	t.Helper()
	snap, _, err := readSnapshot(l.claims, nil)
	must.NoError(t, err)
	known := recordCache{}
	for id, r := range snap.records {
		r.Owner = fromMemory
		known[id+".json"] = cachedRecord{stamp: stampNow(t, filepath.Join(l.claims, id+".json")), record: r}
	}
	return known
}

func stampNow(t *testing.T, path string) fileStamp {
	t.Helper()
	var state unix.Stat_t
	must.NoError(t, unix.Lstat(path, &state))
	stamp, ok := stampOfFile(&state)
	must.True(t, ok)
	return stamp
}

func TestRecordCache(t *testing.T) {
	replaced := func(t *testing.T, path string) {
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(path+".tmp", text, 0o600))
		must.NoError(t, os.Rename(path+".tmp", path))
	}
	// Of the same size, in place, and with the times set back as far as anybody can.
	edited := func(t *testing.T, path string) {
		before, err := os.Stat(path)
		must.NoError(t, err)
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		for stamp := stampNow(t, path); stampNow(t, path) == stamp; { // the kernel's clock may stand still for a moment
			must.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(`"nomad"`), []byte(`"radon"`), 1), 0o600))
			must.NoError(t, os.Chtimes(path, before.ModTime(), before.ModTime()))
		}
	}
	cases := []struct {
		name   string
		change func(t *testing.T, path string)
		// want are the owners of the two claims, "" for one that is gone.
		want [2]string
	}{
		{"untouched", func(*testing.T, string) {}, [2]string{fromMemory, fromMemory}},
		{"replaced", replaced, [2]string{OwnerNomad, fromMemory}},
		{"edited behind the ledger's back", edited, [2]string{"radon", fromMemory}},
		{"removed", func(t *testing.T, path string) { must.NoError(t, os.Remove(path)) }, [2]string{"", fromMemory}},
		{"spoilt", func(t *testing.T, path string) { must.NoError(t, os.Truncate(path, 20)) }, [2]string{"", fromMemory}},
		{"a link in its place", func(t *testing.T, path string) {
			must.NoError(t, os.Rename(path, path+".elsewhere"))
			must.NoError(t, os.Symlink(path+".elsewhere", path))
		}, [2]string{"", fromMemory}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(t)
			first, _ := reserve(t, l, 0, 3)
			second, _ := reserve(t, l, 4, 5)
			l.recordCache = seenNow(t, l)
			tc.change(t, filepath.Join(l.claims, first.ID+".json"))
			owners := map[string]string{}
			for _, c := range list(t, l) {
				owners[c.ID] = c.Owner
			}
			must.Eq(t, tc.want, [2]string{owners[first.ID], owners[second.ID]})
			_, still := l.recordCache[first.ID+".json"]
			must.Eq(t, tc.want[0] == fromMemory, still, must.Sprint("what is known of a file that changed just now"))
			must.MapContainsKey(t, l.recordCache, second.ID+".json")
		})
	}
}

// What a caller makes of a claim, and what a call makes of a record, whether it succeeds or fails, changes nothing that is known.
func TestRecordCache_isNotChanged(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, l *Ledger, id string, p *exec.Cmd) error{
		"list": func(t *testing.T, l *Ledger, _ string, _ *exec.Cmd) error {
			for _, c := range list(t, l) {
				c.Slices[0], c.Container.ID, c.Compute.Share, c.Released = "other", "other", 1, time.Now()
			}
			return nil
		},
		"set the share": func(t *testing.T, l *Ledger, id string, _ *exec.Cmd) error {
			return setCompute(t, l, id, Compute{Share: 7, Max: WholeCompute, Class: ClassNormal})
		},
		"prepare the region": func(t *testing.T, l *Ledger, id string, _ *exec.Cmd) error {
			_, err := l.PrepareRegion(t.Context(), id, "c2", 1<<30)
			return err
		},
		"bind again": func(t *testing.T, l *Ledger, id string, p *exec.Cmd) error {
			endProcess(p)
			return l.Bind(t.Context(), id, container("c2", startProcess(t)))
		},
		"release": func(t *testing.T, l *Ledger, id string, p *exec.Cmd) error {
			endProcess(p)
			return l.Release(t.Context(), id, "c1")
		},
		"sweep": func(t *testing.T, l *Ledger, _ string, p *exec.Cmd) error {
			endProcess(p)
			_, err := l.Sweep(t.Context())
			return err
		},
	} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fails %t", name, fails), func(t *testing.T) {
				l := newLedger(t)
				reserve(t, l, 0, 3)
				asked := request(0, 3)
				asked.Compute = ShareOf(1, 2)
				c, _, err := l.Reserve(t.Context(), asked)
				must.NoError(t, err)
				p := startProcess(t)
				if name != "prepare the region" { // which is of a claim that has no container
					must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", p)))
				}
				if fails && name != "list" {
					must.NoError(t, os.Remove(l.unfinishedPath()))
					must.NoError(t, os.Mkdir(l.unfinishedPath(), 0o700))
				}
				known := seenNow(t, l)
				l.recordCache = known
				before := textOf(t, known[c.ID+".json"].record)
				err = change(t, l, c.ID, p)
				must.Eq(t, fails && name != "list", err != nil, must.Sprint(err))
				must.Eq(t, before, textOf(t, known[c.ID+".json"].record))
			})
		}
	}
}

func textOf(t *testing.T, r *record) string {
	t.Helper()
	text, err := encodeRecord(r)
	must.NoError(t, err)
	return string(text)
}

// A file that changed just now may change once more and look the same, so it is read again.
func TestRecordCache_notWhatIsFresh(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 3)
	_, known, err := readSnapshot(l.claims, nil)
	must.NoError(t, err)
	must.MapEmpty(t, known)

	stamp := stampNow(t, filepath.Join(l.claims, c.ID+".json"))
	changed := time.Unix(stamp.changed.Unix())
	for after, want := range map[time.Duration]bool{-time.Hour: false, 0: false, settled: false, settled + 1: true} {
		must.Eq(t, want, stamp.settledAt(changed.Add(after)), must.Sprint(after))
	}
}

// With all files as old as that, a ledger reads none of them twice: nobody could tell from what it gives.
func TestRecordCache_afterAWhile(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 3)
	before := list(t, l)
	time.Sleep(settled + 100*time.Millisecond) // no event tells that time has passed
	must.Eq(t, before, list(t, l))
	must.MapContainsKey(t, l.recordCache, c.ID+".json")
	must.Eq(t, before, list(t, l))

	cmd := startProcess(t)
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", cmd)))
	must.Eq(t, "c1", list(t, l)[0].Container.ID)
	endProcess(cmd)
	released, err := l.Sweep(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, released)
	must.False(t, list(t, l)[0].Released.IsZero())
	must.NoError(t, l.Drop(t.Context(), c.ID))
	must.SliceEmpty(t, list(t, l))
	must.MapEmpty(t, l.recordCache)
}
