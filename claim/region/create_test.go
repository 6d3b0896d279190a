package region

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A signal, such as Go's runtime sends to its threads, does not keep a region from being made.
func TestWriteFile_Interrupted(t *testing.T) {
	left := 2
	t.Cleanup(func() { fallocate = unix.Fallocate })
	fallocate = func(fd int, mode uint32, offset, length int64) error {
		if left--; left >= 0 {
			return unix.EINTR
		}
		return unix.Fallocate(fd, mode, offset, length)
	}
	must.NoError(t, writeFile(filepath.Join(t.TempDir(), "usage"), []byte("start"), UsageSize, allocatedSize, 0o666))
	must.Eq(t, -1, left)
}
