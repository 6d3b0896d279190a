package shadow

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// sendfile(2) refuses a file that is opened for appending, as it does with some file systems.
func TestCopyFile(t *testing.T) {
	content := bytes.Repeat([]byte("shadow\n"), 100_000)
	path := filepath.Join(t.TempDir(), "from")
	must.NoError(t, os.WriteFile(path, content, 0o644))
	for name, flag := range map[string]int{"in the kernel": 0, "by reads and writes": os.O_APPEND} {
		t.Run(name, func(t *testing.T) {
			from, err := os.Open(path)
			must.NoError(t, err)
			defer from.Close()
			into, err := os.OpenFile(filepath.Join(t.TempDir(), "into"), os.O_WRONLY|os.O_CREATE|flag, 0o644)
			must.NoError(t, err)
			must.NoError(t, copyFile(into, from))
			must.NoError(t, into.Close())
			copied, err := os.ReadFile(into.Name())
			must.NoError(t, err)
			must.Eq(t, content, copied)
		})
	}
}
