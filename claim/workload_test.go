package claim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var testWorkload = Workload{
	Namespace: "ml", Job: "web", Group: "gpu", Task: "train", Allocation: "3f2a91b0-0000-4000-8000-000000000000", Verified: true,
}

func TestWorkload_IsBesideTheClaim(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	_, known := l.Workload(c.ID)
	must.False(t, known)
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, testWorkload))

	noted, known := l.Workload(c.ID)
	must.True(t, known)
	must.Eq(t, testWorkload, noted)
	must.Eq(t, map[string]Workload{c.ID: testWorkload}, l.Workloads())
	for path, text := range contents(t, l) { // an older program refuses a record with a member that it does not know
		must.StrNotContains(t, text, "train", must.Sprint(path))
	}
	_, problems, err := l.List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)

	must.NoError(t, l.Drop(t.Context(), c.ID))
	_, known = l.Workload(c.ID)
	must.False(t, known)
	must.ErrorIs(t, l.NoteWorkload(t.Context(), c.ID, testWorkload), ErrUnknownClaim)
}

func TestWorkload_UnverifiedNamesDoNotReplaceVerifiedOnes(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	forged := Workload{Namespace: "default", Job: "other", ContainerName: "train-3f2a91b0"}
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, forged))
	noted, _ := l.Workload(c.ID)
	must.Eq(t, forged, noted)

	want := testWorkload
	want.ContainerName = forged.ContainerName
	for _, w := range []Workload{testWorkload, forged, {}} {
		must.NoError(t, l.NoteWorkload(t.Context(), c.ID, w))
		noted, _ = l.Workload(c.ID)
		must.Eq(t, want, noted)
	}
}

func TestWorkload_HostileNamesAreOnePrintableLine(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	hostile := Workload{
		Namespace: "a\nb", Job: "\x1b[2J\u202etxt", Group: "\xff\xfe", Task: strings.Repeat("long", 1<<18), Allocation: "1\x002345\x07é",
		ContainerName: "web\rroot",
	}
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, hostile))
	noted, known := l.Workload(c.ID)
	must.True(t, known)
	must.Eq(t, maxNameBytes, len(noted.Task))
	line := noted.String()
	must.StrHasPrefix(t, `a\nb/\x1b[2J\u202etxt/`, line)
	must.Less(t, 600, len(line))
	for _, bad := range []string{"\n", "\x1b", "\u202e", "\x00", "\x07"} {
		must.StrNotContains(t, line, bad)
	}
	must.Eq(t, `container web\rroot`, Workload{ContainerName: hostile.ContainerName}.String())
}

func TestWorkload_Text(t *testing.T) {
	unverified := testWorkload
	unverified.Verified = false
	for want, w := range map[string]Workload{
		"ml/web/gpu/train 3f2a91b0":              testWorkload,
		"ml/web/gpu/train 3f2a91b0 (unverified)": unverified,
		"?/?/?/train (unverified)":               {Task: "train"},
		"container web":                          {ContainerName: "web"},
		"-":                                      {},
	} {
		must.Eq(t, want, w.String())
	}
}

func TestWorkload_DamagedFileIsLikeNone(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, testWorkload))
	for _, damaged := range []string{"", "{", `{"tranche_workload": 2}`, "null"} {
		must.NoError(t, os.WriteFile(l.workloadPath(c.ID), []byte(damaged), 0o600))
		_, known := l.Workload(c.ID)
		must.False(t, known)
	}
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, testWorkload))
	noted, _ := l.Workload(c.ID)
	must.Eq(t, testWorkload, noted)
}

func TestWorkloads_FollowsChanges(t *testing.T) {
	l := newLedger(t)
	must.MapEmpty(t, l.Workloads())
	c, _ := reserve(t, l, 0, 1)
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, testWorkload))
	later := func() time.Time { return time.Now().Add(time.Hour) } // the directory's stamp has settled then
	l.now = later
	must.Eq(t, map[string]Workload{c.ID: testWorkload}, l.Workloads())
	must.True(t, l.workloadCache.known)
	renamed := testWorkload
	renamed.Job = "renamed"
	must.NoError(t, l.NoteWorkload(t.Context(), c.ID, renamed))
	must.NoError(t, os.Chtimes(l.workloads, later(), later())) // by another inode time, whatever the file system's steps
	must.Eq(t, map[string]Workload{c.ID: renamed}, l.Workloads())
}

// A dormant claim goes with its allocation, and is there as long as Nomad may restart the task in place.
func TestSweep_AllocationGone(t *testing.T) {
	l := newLedger(t)
	allocs := filepath.Join(t.TempDir(), "alloc")
	claims := map[string]*Claim{}
	for i, name := range []string{"kept", "gone", "starting", "running", "unknown"} {
		c, _ := reserve(t, l, 2*i, 2*i)
		claims[name] = c
		dir := filepath.Join(allocs, name)
		must.NoError(t, os.MkdirAll(dir, 0o700))
		w := Workload{Job: "web", Allocation: name, Verified: true}
		if name != "unknown" {
			w = w.In(dir)
		}
		must.NoError(t, l.NoteWorkload(t.Context(), c.ID, w))
		if name == "starting" {
			continue
		}
		init := startProcess(t)
		must.NoError(t, l.Bind(t.Context(), c.ID, container("c", init)))
		if name != "running" {
			endProcess(init)
			must.NoError(t, l.Release(t.Context(), c.ID, "c"))
		}
		if name != "kept" {
			must.NoError(t, os.Remove(dir))
		}
	}
	must.NoError(t, os.Remove(filepath.Join(allocs, "starting")))
	left := func() (names []string) {
		_, err := l.Sweep(t.Context())
		must.NoError(t, err)
		for _, c := range list(t, l) {
			w, _ := l.Workload(c.ID)
			names = append(names, w.Allocation)
		}
		return names
	}
	must.Eq(t, []string{"kept", "starting", "running", "unknown"}, left())
	must.NoError(t, os.RemoveAll(allocs))
	must.Eq(t, []string{"kept", "starting", "running", "unknown"}, left(), must.Sprint("a file system that is not mounted says nothing"))
	must.Eq(t, Workload{Allocation: "a"}, Workload{Allocation: "a"}.In("/allocs/b"))
}

// What a container needed at most is known after it has ended, and when the names are noted again.
func TestRelease_KeepsPeak(t *testing.T) {
	l := newLedger(t)
	c, _ := reserve(t, l, 0, 1)
	dir, err := l.PrepareRegion(t.Context(), c.ID, "c1", 0)
	must.NoError(t, err)
	init := startProcess(t)
	must.NoError(t, l.Bind(t.Context(), c.ID, container("c1", init)))
	scribble(t, dir)
	endProcess(init)
	must.NoError(t, l.Release(t.Context(), c.ID, "c1"))
	must.DirNotExists(t, dir)
	for _, w := range []Workload{{}, testWorkload} {
		must.NoError(t, l.NoteWorkload(t.Context(), c.ID, w))
		noted, _ := l.Workload(c.ID)
		must.Eq(t, 77<<16, noted.PeakBytes)
	}
}

func TestSweep_RemovesWorkloadsOfClaimsThatAnOlderProgramRemoved(t *testing.T) {
	l := newLedger(t)
	stays, _ := reserve(t, l, 0, 1)
	gone, _ := reserve(t, l, 2, 3)
	broken, _ := reserve(t, l, 4, 5)
	for _, c := range []*Claim{stays, gone, broken} {
		must.NoError(t, l.NoteWorkload(t.Context(), c.ID, testWorkload))
	}
	must.NoError(t, os.Remove(l.recordPath(gone.ID)))
	must.NoError(t, os.WriteFile(l.recordPath(broken.ID), nil, 0o600))
	_, err := l.Sweep(t.Context())
	must.NoError(t, err)
	left := l.Workloads()
	must.MapContainsKeys(t, left, []string{stays.ID, broken.ID})
	must.MapLen(t, 2, left)
}
