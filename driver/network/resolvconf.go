package network

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"unicode"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// The files that state the host's name servers. Where systemd-resolved runs, the first names only its stub on the
// loopback interface, which a container in a network namespace of its own cannot reach; the second names the real ones.
const (
	hostResolvConf     = "/etc/resolv.conf"
	resolvedResolvConf = "/run/systemd/resolve/resolv.conf"
	resolvedStub       = "127.0.0.53"
)

// writeResolvConf writes the task's resolv.conf into dir and returns its path: the host's, with what the jobspec's dns
// block says instead of it.
func writeResolvConf(dir string, dns *drivers.DNSConfig, hostNetwork bool, owner int) (string, error) {
	data, err := os.ReadFile(hostResolvConf)
	if err != nil && !os.IsNotExist(err) {
		return "", err
	}
	if !hostNetwork && bytes.Contains(data, []byte(resolvedStub)) {
		if real, err := os.ReadFile(resolvedResolvConf); err == nil {
			data = real
		}
	}
	return replaceFile(dir, "resolv.conf", resolvConf(string(data), dns), owner)
}

// resolvConf returns a host's resolv.conf with the parts replaced that the dns block gives.
func resolvConf(host string, dns *drivers.DNSConfig) string {
	if dns == nil {
		return host
	}
	var out strings.Builder
	for line := range strings.Lines(host) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(fields[0], "#") || strings.HasPrefix(fields[0], ";") {
			continue
		}
		replaced := fields[0] == "nameserver" && len(dns.Servers) > 0 ||
			(fields[0] == "search" || fields[0] == "domain") && len(dns.Searches) > 0 ||
			fields[0] == "options" && len(dns.Options) > 0
		if !replaced {
			fmt.Fprintln(&out, strings.Join(fields, " "))
		}
	}
	for _, server := range dns.Servers {
		fmt.Fprintln(&out, "nameserver", server)
	}
	if len(dns.Searches) > 0 {
		fmt.Fprintln(&out, "search", strings.Join(dns.Searches, " "))
	}
	if len(dns.Options) > 0 {
		fmt.Fprintln(&out, "options", strings.Join(dns.Options, " "))
	}
	return out.String()
}

// dns returns what stands in the task's resolv.conf instead of the host's: the task's own options, and the group's dns block
// where it has none.
func (o *Options) dns(group *drivers.DNSConfig) *drivers.DNSConfig {
	if len(o.DNSServers)+len(o.DNSSearchDomains)+len(o.DNSOptions) == 0 {
		return group
	}
	merged := group.Copy()
	if merged == nil {
		merged = &drivers.DNSConfig{}
	}
	for _, field := range []struct {
		of  *[]string
		own []string
	}{
		{&merged.Servers, o.DNSServers}, {&merged.Searches, o.DNSSearchDomains}, {&merged.Options, o.DNSOptions},
	} {
		if len(field.own) > 0 {
			*field.of = field.own
		}
	}
	return merged
}

var (
	searchDomain = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,254}$`)
	dnsOption    = regexp.MustCompile(`^[a-z0-9-]+(:[0-9]+)?$`)
)

// checkDNS checks the options dns_servers, dns_search_domains and dns_options.
func (o *Options) checkDNS() []error {
	var errs []error
	for _, option := range []struct {
		name, allowed string
		values        []string
		ok            func(string) bool
	}{
		{"dns_servers", "an IP address", o.DNSServers, isAddress},
		{"dns_search_domains", "a domain, such as \"example.com\"", o.DNSSearchDomains, searchDomain.MatchString},
		{"dns_options", "an option of resolv.conf, such as \"ndots:2\" or \"rotate\"", o.DNSOptions, dnsOption.MatchString},
	} {
		for i, value := range option.values {
			if !option.ok(value) {
				errs = append(errs, fmt.Errorf("option %s[%d] = %q: must be %s", option.name, i, value, option.allowed))
			}
		}
		if len(option.values) > 0 && o.Mode == None {
			errs = append(errs, fmt.Errorf("option %s = %q: a task with network_mode = %q cannot reach a name server; leave it out",
				option.name, option.values, None))
		}
	}
	return errs
}

func isAddress(value string) bool {
	_, err := netip.ParseAddr(value)
	return err == nil && !strings.ContainsFunc(value, unicode.IsSpace)
}
