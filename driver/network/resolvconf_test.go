package network

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
		file, err := writeResolvConf(dir, &drivers.DNSConfig{Servers: []string{"192.0.2.1"}}, true, os.Getuid())
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

func TestResolvConf(t *testing.T) {
	const host = "# comment\nnameserver 10.0.0.1\nsearch lan\noptions ndots:2\n"
	must.Eq(t, host, resolvConf(host, nil))
	must.Eq(t, "search lan\noptions ndots:2\nnameserver 1.1.1.1\nnameserver 9.9.9.9\n",
		resolvConf(host, &drivers.DNSConfig{Servers: []string{"1.1.1.1", "9.9.9.9"}}))
	must.Eq(t, "nameserver 10.0.0.1\nsearch a b\noptions rotate\n",
		resolvConf(host, &drivers.DNSConfig{Searches: []string{"a", "b"}, Options: []string{"rotate"}}))
}

func TestOptions_DNSOverTheGroups(t *testing.T) {
	group := &drivers.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"group"}, Options: []string{"rotate"}}
	must.Eq(t, group, (&Options{}).dns(group))
	must.Nil(t, (&Options{}).dns(nil))
	must.Eq(t, &drivers.DNSConfig{Servers: []string{"9.9.9.9"}, Searches: []string{"group"}, Options: []string{"rotate"}},
		(&Options{DNSServers: []string{"9.9.9.9"}}).dns(group))
	must.Eq(t, &drivers.DNSConfig{Searches: []string{"task"}, Options: []string{"ndots:1"}},
		(&Options{DNSSearchDomains: []string{"task"}, DNSOptions: []string{"ndots:1"}}).dns(nil))
	must.Eq(t, "10.0.0.1", group.Servers[0])
}
