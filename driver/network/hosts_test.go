package network

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/network/networktest"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/thread"

	"github.com/tranche-gpu/tranche/internal/mounttest"
)

func TestParseExtraHost(t *testing.T) {
	for entry, want := range map[string]string{
		"db:10.0.0.7": "db 10.0.0.7", "db.example.com:fd00::7": "db.example.com fd00::7", "db:[fd00::7]": "db fd00::7",
		"_under_score:127.0.0.1": "_under_score 127.0.0.1", "x:[10.0.0.7]": "x 10.0.0.7",
	} {
		line, err := parseExtraHost(entry)
		must.NoError(t, err, must.Sprint(entry))
		must.Eq(t, want, fmt.Sprint(line.name, " ", line.address))
	}
}

// hostsOf is the text of a network's hosts file, and its path.
func hostsOf(t *testing.T, n *Network) (text, file string) {
	t.Helper()
	for _, m := range n.files {
		if m.Destination == "/etc/hosts" {
			data, err := os.ReadFile(m.Source)
			must.NoError(t, err)
			return string(data), m.Source
		}
	}
	t.Fatal("no hosts file")
	return "", ""
}

func TestHosts(t *testing.T) {
	allocDir := t.TempDir()
	group := &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: "/run/netns/x",
		HostsConfig: &drivers.HostsConfig{Hostname: "web-1", Address: "172.26.64.2"}}
	network := func(task string, isolation *drivers.NetworkIsolationSpec, options Options) *Network {
		cfg := &drivers.TaskConfig{AllocID: "0123456789abcdef", Name: task, AllocDir: allocDir, NetworkIsolation: isolation}
		must.NoError(t, os.MkdirAll(cfg.TaskDir().Dir, 0o755))
		n, err := New(cfg, &options)
		must.NoError(t, err)
		must.NoError(t, n.WriteFiles())
		return n
	}
	extra := func(hosts ...string) Options { return Options{ExtraHosts: hosts} }

	// The group's tasks share one file, unless one has names of its own. In whatever order they come.
	text, file := hostsOf(t, network("extra", group, extra("db:10.0.0.7", "six:[fd00::7]")))
	must.Eq(t, filepath.Join(allocDir, "extra/hosts"), file)
	must.StrContains(t, text, "127.0.0.1 localhost\n")
	must.StrContains(t, text, "172.26.64.2 web-1\n10.0.0.7 db\nfd00::7 six\n")

	text, file = hostsOf(t, network("plain", group, Options{}))
	must.Eq(t, filepath.Join(allocDir, "hosts"), file)
	must.StrContains(t, text, "172.26.64.2 web-1")
	must.StrNotContains(t, text, "10.0.0.7")
	_, again := hostsOf(t, network("another", group, Options{}))
	must.Eq(t, file, again)

	text, _ = hostsOf(t, network("extra2", group, extra("cache:10.0.0.8")))
	must.StrContains(t, text, "172.26.64.2 web-1\n10.0.0.8 cache\n")
	must.StrNotContains(t, text, "10.0.0.7")

	// A task with a name of its own has it in its file, beside the group's address.
	text, file = hostsOf(t, network("named", group, Options{Hostname: "mine"}))
	must.Eq(t, filepath.Join(allocDir, "named/hosts"), file)
	must.StrContains(t, text, "172.26.64.2 mine\n")

	// A network of which nobody says an address: there are local names and the task's own at least.
	needs.Root(t, "to mount")
	bare := &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: networktest.Namespace(t)}
	text, _ = hostsOf(t, network("bare", bare, Options{}))
	must.StrContains(t, text, "127.0.0.1 localhost\n")
	must.StrContains(t, text, "127.0.0.1 0123456789ab\n")

	// Of the networks that Nomad itself makes only the namespace knows the address.
	must.NoError(t, addAddress(bare.Path, "10.77.0.2"))
	text, file = hostsOf(t, network("addressed", bare, Options{ExtraHosts: []string{"db:10.0.0.7"}}))
	must.Eq(t, filepath.Join(allocDir, "addressed/hosts"), file)
	must.StrContains(t, text, "10.77.0.2 0123456789ab\n10.0.0.7 db\n")
	allocDir = t.TempDir() // with another allocation's group
	text, file = hostsOf(t, network("shared", bare, Options{}))
	must.Eq(t, filepath.Join(allocDir, "hosts"), file)
	must.StrContains(t, text, "10.77.0.2 0123456789ab\n")

	// After a restart of the machine the network is another one. What the tasks added to a file of the same one stays.
	mounttest.Write(t, allocDir, map[string]string{"hosts": text + "10.0.0.9 added\n"})
	text, _ = hostsOf(t, network("shared", bare, Options{}))
	must.StrContains(t, text, "10.0.0.9 added\n")
	must.NoError(t, addAddress(bare.Path, "10.77.0.3"))
	text, _ = hostsOf(t, network("shared", bare, Options{}))
	must.StrContains(t, text, "10.77.0.3 0123456789ab\n")
	must.StrNotContains(t, text, "10.77.0.2")

	text, _ = hostsOf(t, network("none", nil, Options{Mode: None}))
	must.StrContains(t, text, "127.0.0.1 localhost\n")
	must.StrContains(t, text, "127.0.0.1 0123456789ab\n")
}

// addAddress gives the loopback interface of a network namespace another address.
func addAddress(namespace, address string) error {
	file, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer file.Close()
	return thread.Run(func() error {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		request, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		if err := request.SetInet4Addr(netip.MustParseAddr(address).AsSlice()); err != nil {
			return err
		}
		return unix.IoctlIfreq(socket, unix.SIOCSIFADDR, request)
	})
}

func TestHosts_OfTheHost(t *testing.T) {
	cfg := &drivers.TaskConfig{AllocID: "0123456789abcdef", Name: "web", AllocDir: t.TempDir()}
	must.NoError(t, os.MkdirAll(cfg.TaskDir().Dir, 0o755))
	host, err := os.ReadFile("/etc/hosts")
	must.NoError(t, err)
	n, err := New(cfg, &Options{})
	must.NoError(t, err)
	must.NoError(t, n.WriteFiles())
	text, file := hostsOf(t, n)
	must.Eq(t, filepath.Join(cfg.TaskDir().Dir, "hosts"), file)
	must.Eq(t, strings.TrimRight(string(host), "\n")+"\n", text)

	n, err = New(cfg, &Options{ExtraHosts: []string{"db:10.0.0.7"}})
	must.NoError(t, err)
	must.NoError(t, n.WriteFiles())
	text, file = hostsOf(t, n)
	must.Eq(t, filepath.Join(cfg.TaskDir().Dir, "hosts"), file)
	must.Eq(t, strings.TrimRight(string(host), "\n")+"\n10.0.0.7 db\n", text)

	// A name of its own, which the host's file does not have.
	n = &Network{Mode: Host, hostname: "mine", options: &Options{}}
	m, err := n.hostsMount(cfg, nil)
	must.NoError(t, err)
	data, err := os.ReadFile(m.Source)
	must.NoError(t, err)
	must.StrHasSuffix(t, "127.0.0.1 mine\n", string(data))
}
