package namedfile

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, Check("ca_file", dir))
	must.NoError(t, Check("ca_file", ""))
	missing := filepath.Join(dir, "missing")
	must.EqError(t, Check("ca_file", missing), "ca_file: stat "+missing+": no such file or directory; create it or correct the path")
}

func TestError(t *testing.T) {
	must.NoError(t, Error("ca_file", nil))
	must.EqError(t, Error("ca_file", errors.New("permission denied")), "ca_file: permission denied")
}
