package network

import (
	"os"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestNew(t *testing.T) {
	group := &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: "/run/netns/x",
		HostsConfig: &drivers.HostsConfig{Hostname: "web-1", Address: "172.26.64.2"}}
	cases := []struct {
		name string
		mode string
		spec *drivers.NetworkIsolationSpec
		want string
		path string
		err  string
	}{
		{name: "nothing said", want: Host},
		{name: "the group's by default", spec: group, want: Bridge, path: "/run/netns/x"},
		{name: "the group's by name", mode: Bridge, spec: group, want: Bridge, path: "/run/netns/x"},
		{name: "the host's in a group with its own", mode: Host, spec: group, want: Host},
		{name: "none", mode: None, spec: group, want: None},
		{name: "bridge without a group", mode: Bridge, err: `add network { mode = "bridge" }`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := &drivers.TaskConfig{AllocID: "0123456789abcdef", Name: "web", AllocDir: t.TempDir(),
				NetworkIsolation: c.spec}
			must.NoError(t, os.MkdirAll(cfg.TaskDir().Dir, 0o755))
			n, err := New(cfg, &Options{Mode: c.mode})
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				return
			}
			must.NoError(t, err)
			must.SliceEmpty(t, n.files)
			must.NoError(t, n.WriteFiles())
			must.Eq(t, c.want, n.Mode)
			must.Eq(t, c.path, n.path)
			if c.want == Bridge {
				must.Eq(t, "web-1", n.hostname)
				must.Len(t, 2, n.files)
			}
			if c.want == None {
				must.Eq(t, "0123456789ab", n.hostname)
				must.Len(t, 1, n.files)
				must.Eq(t, "/etc/hosts", n.files[0].Destination)
			}
		})
	}
}

func TestOptions_Check(t *testing.T) {
	cases := []struct {
		name    string
		options Options
		errs    []string
	}{
		{"a mode that is none", Options{Mode: "cni/x"}, []string{`option network_mode = "cni/x"`, `"host", "bridge" or "none"`}},
		{"a host without address", Options{ExtraHosts: []string{"ok:10.0.0.1", "db"}},
			[]string{`option extra_hosts[1] = "db"`, "NAME:ADDRESS", "db:10.0.0.7"}},
		{"an address that is a name", Options{ExtraHosts: []string{"db:other"}}, []string{`option extra_hosts[0] = "db:other"`}},
		{"no name", Options{ExtraHosts: []string{":10.0.0.1"}}, []string{`":10.0.0.1"`}},
		{"brackets that do not close", Options{ExtraHosts: []string{"db:[fd00::7"}}, []string{`"db:[fd00::7"`}},
		{"a second name", Options{ExtraHosts: []string{"db other:10.0.0.1"}}, []string{`"db other:10.0.0.1"`}},
		{"a second line", Options{ExtraHosts: []string{"db\n0.0.0.0 localhost:10.0.0.1"}}, []string{"extra_hosts[0]"}},
		{"a second line in a zone", Options{ExtraHosts: []string{"db:fe80::1%x\n10.0.0.1 localhost"}}, []string{"extra_hosts[0]"}},
		{"a server that is a name", Options{DNSServers: []string{"10.0.0.1", "dns.example.com"}},
			[]string{`option dns_servers[1] = "dns.example.com"`, "an IP address"}},
		{"a domain with a blank", Options{DNSSearchDomains: []string{"a b"}},
			[]string{`option dns_search_domains[0] = "a b"`, "a domain"}},
		{"an empty domain", Options{DNSSearchDomains: []string{""}}, []string{`option dns_search_domains[0] = ""`}},
		{"an option of two lines", Options{DNSOptions: []string{"ndots:1\nnameserver 1.1.1.1"}},
			[]string{"option dns_options[0]", "ndots:2"}},
		{"name servers without network", Options{Mode: None, DNSServers: []string{"10.0.0.1"}},
			[]string{`option dns_servers = ["10.0.0.1"]`, `network_mode = "none"`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := c.options.Check()
			must.Error(t, err)
			for _, want := range c.errs {
				must.ErrorContains(t, err, want)
			}
		})
	}
	good := Options{Mode: Bridge, ExtraHosts: []string{"db:10.0.0.7", "six:[fd00::7]"}, DNSServers: []string{"10.0.0.1", "fd00::1"},
		DNSSearchDomains: []string{"example.com", "."}, DNSOptions: []string{"ndots:2", "rotate", "use-vc"}}
	must.NoError(t, good.Check())
}
