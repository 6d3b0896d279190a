package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/network/networktest"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/userns"
)

// Each option about the network is tried here in a real container.

func TestNetwork_ExtraHosts(t *testing.T) {
	d := newTestDriver(t)
	host, err := os.ReadFile("/etc/hosts")
	must.NoError(t, err)
	for mode, base := range map[string]string{
		network.Host: string(host), network.None: "127.0.0.1 localhost\n", network.Bridge: "172.26.64.2 web-1\n",
	} {
		t.Run(mode, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task("cat /etc/hosts; echo 10.0.0.9 added >> /etc/hosts; tail -n1 /etc/hosts; echo end", func(o *spec.TaskConfig) {
				o.NetworkMode = mode
				o.ExtraHosts = []string{"mine:127.0.0.1", "six:[fd00::7]"}
			})
			if mode == network.Bridge {
				cfg.NetworkIsolation = groupNetwork(t)
			}
			_, out := d.run(cfg, "end")
			must.StrContains(t, out, strings.TrimRight(base, "\n"))
			must.StrHasSuffix(t, "127.0.0.1 mine\nfd00::7 six\n10.0.0.9 added\nend\n", out)
			after, err := os.ReadFile("/etc/hosts")
			must.NoError(t, err)
			must.Eq(t, string(host), string(after), must.Sprint("the host's own file was changed"))
		})
	}
}

// groupNetwork is a group's network as Nomad hands it over.
func groupNetwork(t *testing.T) *drivers.NetworkIsolationSpec {
	t.Helper()
	return &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: networktest.Namespace(t),
		HostsConfig: &drivers.HostsConfig{Hostname: "web-1", Address: "172.26.64.2"}}
}

// TestNetwork_NamesOfOneGroup runs two tasks of an allocation: each has its own extra hosts, and a third shares the
// group's file.
func TestNetwork_NamesOfOneGroup(t *testing.T) {
	d := newTestDriver(t)
	group := groupNetwork(t)
	first := d.task("cat /etc/hosts; echo end", func(o *spec.TaskConfig) { o.ExtraHosts = []string{"db:10.0.0.7"} })
	first.NetworkIsolation = group
	_, out := d.run(first, "end")
	must.StrHasSuffix(t, "172.26.64.2 web-1\n10.0.0.7 db\nend\n", out)
	for name, extra := range map[string]string{"other": "cache:10.0.0.8", "plain": ""} {
		cfg := d.task("cat /etc/hosts; echo end", func(o *spec.TaskConfig) {
			if extra != "" {
				o.ExtraHosts = []string{extra}
			}
		})
		// In the first one's allocation.
		cfg.AllocDir, cfg.Name, cfg.NetworkIsolation = first.AllocDir, name, group
		for _, dir := range []string{cfg.TaskDir().LocalDir, cfg.TaskDir().SecretsDir} {
			must.NoError(t, os.MkdirAll(dir, 0o755))
		}
		d.start(cfg)
		d.wait(cfg)
		text, err := os.ReadFile(filepath.Join(cfg.AllocDir, map[string]string{"other": "other/hosts", "plain": "hosts"}[name]))
		must.NoError(t, err)
		must.StrContains(t, string(text), "172.26.64.2 web-1")
		must.StrNotContains(t, string(text), "10.0.0.7")
		must.Eq(t, extra != "", strings.Contains(string(text), "10.0.0.8 cache\n"))
	}
}

func TestNetwork_DNS(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("cat /etc/resolv.conf; echo end", func(o *spec.TaskConfig) {
		o.DNSServers, o.DNSOptions = []string{"192.0.2.1", "2001:db8::1"}, []string{"ndots:3"}
	})
	cfg.NetworkIsolation = groupNetwork(t)
	cfg.DNS = &drivers.DNSConfig{
		Servers: []string{"192.0.2.9"}, Searches: []string{"group.example"}, Options: []string{"rotate"},
	}
	_, out := d.run(cfg, "end")
	must.StrHasSuffix(t, "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch group.example\noptions ndots:3\nend\n", out)
	must.StrNotContains(t, out, "192.0.2.9")

	cfg = d.task("cat /etc/resolv.conf; echo end", func(o *spec.TaskConfig) {
		o.DNSSearchDomains = []string{"a.example", "b.example"}
	})
	_, out = d.run(cfg, "end") // the host's network
	must.StrHasSuffix(t, "search a.example b.example\nend\n", out)
}

// A task may write to its files, as in docker, and never to the host's.
func TestNetwork_FilesCanBeWritten(t *testing.T) {
	d, _ := newUsernsDriver(t)
	host, err := os.ReadFile("/etc/hosts")
	must.NoError(t, err)
	for _, mode := range []string{network.Host, network.Bridge, network.None} {
		for _, users := range []string{"", userns.Auto} {
			for _, readonly := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s readonly=%v", mode, users, readonly), func(t *testing.T) {
					d := d.in(t)
					cfg := d.task("for file in hosts resolv.conf; do echo '# mine' >>/etc/$file && tail -n 1 /etc/$file; done; echo end",
						func(o *spec.TaskConfig) {
							o.NetworkMode, o.Userns, o.ReadonlyRootfs = mode, users, readonly
							if mode == network.Bridge {
								o.ExtraHosts = []string{"db:10.0.0.7"} // else it has the group's file, which is for all of its tasks
							}
						})
					if mode == network.Bridge {
						cfg.NetworkIsolation = groupNetwork(t)
					}
					_, out := d.run(cfg, "end")
					must.Eq(t, map[bool]string{false: "# mine\n# mine\nend\n", true: "end\n"}[readonly], out)
				})
			}
		}
	}
	after, err := os.ReadFile("/etc/hosts")
	must.NoError(t, err)
	must.Eq(t, string(host), string(after))
}

func TestNetwork_NoneHasLocalNames(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("refused() { wget -qO- http://$1:9 2>&1 | grep -q refused; }; refused localhost && echo localhost; "+
		"refused $(hostname) && echo itself; "+
		"test -e /etc/resolv.conf || echo no name servers; echo end", func(o *spec.TaskConfig) { o.NetworkMode = network.None })
	_, out := d.run(cfg, "end")
	must.Eq(t, "localhost\nitself\nno name servers\nend\n", out)
}

func TestBadInput_NetworkStartsNothing(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.failing(func(o *spec.TaskConfig) { o.ExtraHosts, o.DNSServers = []string{"db"}, []string{"dns"} })
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, `option extra_hosts[0] = "db"`)
	must.ErrorContains(t, err, `option dns_servers[0] = "dns"`)
	d.nothingLeft(cfg)
}
