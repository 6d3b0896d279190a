package region

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// newBounded makes a region as a container gets it.
func newBounded(t *testing.T) string {
	t.Helper()
	needs.Root(t, "to mount a file system")
	dir := filepath.Join(t.TempDir(), "claims", "0badcafe")
	must.NoError(t, CreateBounded(dir, testHeader))
	t.Cleanup(func() { must.NoError(t, Remove(dir)) })
	return dir
}

func TestCreateBounded(t *testing.T) {
	dir := newBounded(t)
	for name, mode := range map[string]os.FileMode{
		"": 0o755 | os.ModeDir, LimitFile: 0o644, UsageFile: 0o666, "..": 0o700 | os.ModeDir,
	} {
		info, err := os.Stat(filepath.Join(dir, name))
		must.NoError(t, err)
		must.Eq(t, mode, info.Mode(), must.Sprint(name))
	}
	h, err := ReadHeader(dir)
	must.NoError(t, err)
	must.Eq(t, testHeader, h)
	must.True(t, Bounded(dir))
	must.False(t, Bounded(newRegion(t)))

	var fs unix.Statfs_t
	must.NoError(t, unix.Statfs(dir, &fs))
	for name, flag := range map[string]int64{"nosuid": unix.ST_NOSUID, "nodev": unix.ST_NODEV, "noexec": unix.ST_NOEXEC} {
		must.NotEq(t, 0, fs.Flags&flag, must.Sprint(name))
	}
	must.ErrorIs(t, CreateBounded(dir, testHeader), os.ErrExist)

	must.NoError(t, Remove(dir))
	must.DirNotExists(t, dir)
	must.NoError(t, Remove(dir))
}

// What the container's root does to the usage file takes no more of the host's memory than a whole region does.
func TestBounded_CannotBeFilled(t *testing.T) {
	for name, attack := range map[string]func(*os.File) error{
		"written longer":    writeUntilRefused,
		"allocated":         func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, 1<<30) },
		"allocated unseen":  func(f *os.File) error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, UsageSize, 1<<30) },
		"sparse, and ended": func(f *os.File) error { return afterTruncate(f, 1<<40, writeUntilRefused) },
		"holes, and again":  func(f *os.File) error { return afterTruncate(f, 0, writeUntilRefused) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := newBounded(t)
			f := openAs(t, dir).File
			must.ErrorIs(t, attack(f), unix.ENOSPC)
			var fs unix.Statfs_t
			must.NoError(t, unix.Statfs(dir, &fs))
			must.LessEq(t, uint64(boundedSize()), fs.Blocks*uint64(fs.Bsize))
		})
	}
	t.Run("every page of a region in order", func(t *testing.T) {
		dir := newBounded(t)
		f := openAs(t, dir).File
		_, err := f.WriteAt(make([]byte, UsageSize-headerSize), headerSize)
		must.NoError(t, err)
		_, err = Read(dir)
		must.NoError(t, err)
	})
	t.Run("other files", func(t *testing.T) {
		dir := newBounded(t)
		var err error
		for i := 0; err == nil; i++ {
			must.Less(t, boundedInodes, i)
			err = os.Symlink("x", filepath.Join(dir, string(rune('a'+i))))
		}
		must.ErrorIs(t, err, unix.ENOSPC)
	})
}

func writeUntilRefused(f *os.File) error {
	page := make([]byte, 4096)
	for range 1 << 16 { // 256 MiB are more than enough
		if _, err := f.Write(page); err != nil {
			return err
		}
	}
	return nil
}

func afterTruncate(f *os.File, size int64, attack func(*os.File) error) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	return attack(f)
}
