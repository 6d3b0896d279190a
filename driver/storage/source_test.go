package storage

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/mounttest"
	"github.com/tranche-gpu/tranche/internal/needs"
)

func TestInAlloc(t *testing.T) {
	cfg := &drivers.TaskConfig{AllocDir: "/data/alloc/1234", Name: "web"}
	cases := []struct {
		source string
		rel    string
		inside bool
		err    string
	}{
		{"local/x", "web/local/x", true, ""},
		{"./data", "web/data", true, ""},
		{"local/../conf/x", "web/conf/x", true, ""},
		{"../alloc", "alloc", true, ""},
		{"../alloc/data", "alloc/data", true, ""},
		{"../db/local", "db/local", true, ""},
		{"/data/alloc/1234/web/local", "web/local", true, ""},
		{"/data/alloc/1234/alloc/data", "alloc/data", true, ""},
		{"/etc", "", false, ""},
		{"/data/alloc/1234/../5678/web/local", "", false, ""},
		{"/data/alloc/12345/web/local", "", false, ""},
		{".", "", false, "whole task"},
		{"local/..", "", false, "whole task"},
		{"..", "", false, "whole task"},
		{"../db", "", false, "whole task"},
		{"/data/alloc/1234", "", false, "whole task"},
		{"private", "", false, `"private"`},
		{"private/vault_token", "", false, `"private"`},
		{"../db/private", "", false, `"private"`},
		{"image-volumes", "", false, `"image-volumes"`},
	}
	for _, c := range cases {
		t.Run(c.source, func(t *testing.T) {
			rel, inside, err := inAlloc(cfg, c.source)
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				must.ErrorContains(t, err, c.source)
				return
			}
			must.NoError(t, err)
			must.Eq(t, c.rel, rel)
			must.Eq(t, c.inside, inside)
		})
	}
}

func TestOpenInAlloc(t *testing.T) {
	outside, alloc := t.TempDir(), t.TempDir()
	mounttest.Write(t, outside, map[string]string{"shadow": "the host's"})
	mounttest.Write(t, alloc, map[string]string{
		"web/local/conf/f": "conf", "web/secrets/s": "secret", "web/f": "in the task's directory",
		"db/secrets/s": "another's secret", "alloc/data/f": "shared",
	})
	for link, target := range map[string]string{
		"web/local/inside":   "conf",
		"web/local/absolute": "/conf",
		"web/local/host":     outside,
		"web/local/up":       "../secrets",
		"web/local/far":      "../../../../../../../../../.." + outside,
		"web/local/other":    "../../db/secrets",
		"alloc/data/other":   "../../db/secrets",
		"alloc/data/proc":    "/proc/self/root",
	} {
		must.NoError(t, os.Symlink(target, filepath.Join(alloc, link)))
	}
	for rel, want := range map[string]string{
		"web/local/conf/f": "conf", "web/local/inside/f": "conf", "web/local/absolute/f": "conf",
		"web/f": "in the task's directory", "alloc/data/f": "shared", "db/secrets/s": "another's secret",
	} {
		t.Run(rel, func(t *testing.T) {
			file, err := openInAlloc(alloc, rel, nil)
			must.NoError(t, err)
			defer file.Close()
			text, err := os.ReadFile(filepath.Join(alloc, rel))
			if rel == "web/local/absolute/f" { // leads elsewhere from the host's root
				text, err = []byte(want), nil
			}
			must.NoError(t, err)
			must.Eq(t, want, string(text))
			opened, err := file.Stat()
			must.NoError(t, err)
			must.Eq(t, int64(len(want)), opened.Size())
		})
	}
	for _, rel := range []string{
		"web/local/host", "web/local/host/shadow", "web/local/up/s", "web/local/far/shadow", "web/local/other/s",
		"alloc/data/other/s", "alloc/data/proc/etc/passwd", "web/local/none",
	} {
		t.Run(rel, func(t *testing.T) {
			_, err := openInAlloc(alloc, rel, nil)
			must.ErrorContains(t, err, rel)
			must.StrNotContains(t, err.Error(), alloc)
		})
	}
}

func TestOpenInAlloc_MakesWhatIsMissing(t *testing.T) {
	outside, alloc := t.TempDir(), t.TempDir()
	mounttest.Write(t, alloc, map[string]string{"web/local/f": ""})
	must.NoError(t, os.Symlink(outside, filepath.Join(alloc, "web/local/link")))
	var first os.FileInfo
	made := func(dir string) (err error) {
		first, err = os.Stat(dir)
		return err
	}
	file, err := openInAlloc(alloc, "web/local/a/b", made)
	must.NoError(t, err)
	file.Close()
	want, err := os.Stat(filepath.Join(alloc, "web/local/a"))
	must.NoError(t, err)
	must.True(t, os.SameFile(want, first))
	info, err := os.Stat(filepath.Join(alloc, "web/local/a/b"))
	must.NoError(t, err)
	must.True(t, info.IsDir())
	if file, err := openInAlloc(alloc, "web/local/link/made", made); err == nil {
		file.Close()
	}
	entries, err := os.ReadDir(outside)
	must.NoError(t, err)
	must.SliceEmpty(t, entries, must.Sprint("something was made outside of the allocation's directory"))
}

// newTestPinned makes a place for pins that goes with the test.
func newTestPinned(t *testing.T, runDir string) *pinnedSources {
	t.Helper()
	p, err := newPinnedSources(runDir, "container")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, removePinned(p.dir)) })
	return p
}

// mustHoldNothingPinned asserts that no place for pins is left below a run_dir.
func mustHoldNothingPinned(t *testing.T, runDir string) {
	t.Helper()
	must.SliceEmpty(t, mounttest.Below(t, PinnedDir(runDir)))
	entries, err := os.ReadDir(PinnedDir(runDir))
	if !os.IsNotExist(err) {
		must.NoError(t, err)
	}
	must.SliceEmpty(t, entries)
}

// TestPinnedSources_HoldWhatWasChecked is the attack that pins are against: between the check of a path and its mount a task puts
// a link in its place.
func TestPinnedSources_HoldWhatWasChecked(t *testing.T) {
	needs.Root(t, "to mount")
	outside, alloc, runDir := t.TempDir(), t.TempDir(), t.TempDir()
	mounttest.Write(t, outside, map[string]string{"f": "the host's"})
	mounttest.Write(t, alloc, map[string]string{"alloc/data/f": "the job's"})
	p := newTestPinned(t, runDir)
	file, err := openInAlloc(alloc, "alloc/data", nil)
	must.NoError(t, err)
	defer file.Close()

	attack := func() {
		must.NoError(t, os.Rename(filepath.Join(alloc, "alloc/data"), filepath.Join(alloc, "alloc/was")))
		must.NoError(t, os.Symlink(outside, filepath.Join(alloc, "alloc/data")))
	}
	attack() // after the check
	at, err := p.add(file)
	must.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(at, "f"))
	must.NoError(t, err)
	must.Eq(t, "the job's", string(text))

	// The place itself is root's alone.
	info, err := os.Stat(filepath.Dir(at))
	must.NoError(t, err)
	must.Eq(t, 0o700, info.Mode().Perm())

	must.NoError(t, p.release())
	mustHoldNothingPinned(t, runDir)
	must.FileExists(t, filepath.Join(alloc, "alloc/was/f"))
}

func TestPinnedSources_OfAFile(t *testing.T) {
	needs.Root(t, "to mount")
	alloc, runDir := t.TempDir(), t.TempDir()
	mounttest.Write(t, alloc, map[string]string{"web/local/f": "text"})
	p := newTestPinned(t, runDir)
	file, err := openInAlloc(alloc, "web/local/f", nil)
	must.NoError(t, err)
	defer file.Close()
	at, err := p.add(file)
	must.NoError(t, err)
	text, err := os.ReadFile(at)
	must.NoError(t, err)
	must.Eq(t, "text", string(text))
}

// TestPinnedSources_LeaveMountsBelowAlone covers the trap of a recursive bind of a mount that propagates: unmounting the copy
// would unmount what is below the original.
func TestPinnedSources_LeaveMountsBelowAlone(t *testing.T) {
	needs.Root(t, "to mount")
	alloc, runDir := t.TempDir(), t.TempDir()
	shared := filepath.Join(alloc, "alloc")
	must.NoError(t, os.Mkdir(shared, 0o755))
	mounttest.Shared(t, shared)
	must.NoError(t, os.Mkdir(filepath.Join(shared, "below"), 0o755))
	mounttest.Tmpfs(t, filepath.Join(shared, "below"))
	mounttest.Write(t, shared, map[string]string{"below/f": ""})
	p := newTestPinned(t, runDir)
	file, err := openInAlloc(alloc, "alloc", nil)
	must.NoError(t, err)
	defer file.Close()
	at, err := p.add(file)
	must.NoError(t, err)
	must.FileExists(t, filepath.Join(at, "below/f"))
	must.NoError(t, p.release())
	must.FileExists(t, filepath.Join(shared, "below/f"))
	mustHoldNothingPinned(t, runDir)
}

func TestSweepPinned(t *testing.T) {
	needs.Root(t, "to mount")
	alloc, runDir := t.TempDir(), t.TempDir()
	mounttest.Write(t, alloc, map[string]string{"alloc/f": "kept"})
	must.NoError(t, sweepPinned(runDir))
	p := newTestPinned(t, runDir)
	file, err := openInAlloc(alloc, "alloc", nil)
	must.NoError(t, err)
	defer file.Close()
	at, err := p.add(file)
	must.NoError(t, err)

	_, err = newPinnedSources(runDir, "container")
	must.ErrorContains(t, err, "another start of the task")
	must.NoError(t, sweepPinned(runDir))
	must.FileExists(t, filepath.Join(at, "f"), must.Sprint("a place in use was swept"))

	must.NoError(t, p.lock.Close()) // as the kernel does when the plugin dies
	must.NoError(t, sweepPinned(runDir))
	mustHoldNothingPinned(t, runDir)
	must.FileExists(t, filepath.Join(alloc, "alloc/f"))
}

func TestNewPinnedSources_AfterAKilledPlugin(t *testing.T) {
	needs.Root(t, "to mount")
	alloc, runDir := t.TempDir(), t.TempDir()
	mounttest.Write(t, alloc, map[string]string{"alloc/f": "kept"})
	dead := newTestPinned(t, runDir)
	file, err := openInAlloc(alloc, "alloc", nil)
	must.NoError(t, err)
	defer file.Close()
	_, err = dead.add(file)
	must.NoError(t, err)
	must.NoError(t, dead.lock.Close())

	p, err := newPinnedSources(runDir, "container")
	must.NoError(t, err)
	_, err = p.add(file)
	must.NoError(t, err)
	must.Len(t, 2, mounttest.Below(t, runDir)) // the place and one pin
	must.NoError(t, p.release())
	mustHoldNothingPinned(t, runDir)
}

func TestCheckPropagates(t *testing.T) {
	needs.Root(t, "to mount")
	private, shared := t.TempDir(), t.TempDir()
	mounttest.Tmpfs(t, private)
	mounttest.Shared(t, shared)
	for _, mode := range []string{"rprivate", "private", ""} {
		must.NoError(t, checkPropagates(private, mode))
	}
	for _, mode := range []string{"rslave", "slave", "rshared", "shared"} {
		must.NoError(t, checkPropagates(shared, mode))
		err := checkPropagates(private, mode)
		must.ErrorContains(t, err, private)
		must.ErrorContains(t, err, "mount --make-shared")
	}
	must.NoError(t, unix.Mount("", shared, "", unix.MS_SLAVE, ""))
}
