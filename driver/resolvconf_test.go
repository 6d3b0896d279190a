package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestWriteResolvConf_ReplacesALink(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	must.NoError(t, os.WriteFile(victim, []byte("the host's"), 0o600))
	must.NoError(t, os.Symlink(victim, filepath.Join(dir, "resolv.conf")))
	for range 2 { // the second time over a file of ours
		file, err := writeResolvConf(dir, &drivers.DNSConfig{Servers: []string{"192.0.2.1"}}, true)
		must.NoError(t, err)
		info, err := os.Lstat(file)
		must.NoError(t, err)
		must.Eq(t, os.FileMode(0o644), info.Mode())
		content, err := os.ReadFile(file)
		must.NoError(t, err)
		must.StrContains(t, string(content), "nameserver 192.0.2.1\n")
	}
	content, err := os.ReadFile(victim)
	must.NoError(t, err)
	must.Eq(t, "the host's", string(content))
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 1, entries)
}
