package driver

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// Where the host says which name servers it asks. Where systemd-resolved runs, the first names only its stub on the
// loopback interface, which a container in a network namespace of its own cannot reach; the second names the real ones.
const (
	hostResolvConf     = "/etc/resolv.conf"
	resolvedResolvConf = "/run/systemd/resolve/resolv.conf"
	resolvedStub       = "127.0.0.53"
)

// writeResolvConf writes the task's resolv.conf into dir and returns its path: the host's, with what the jobspec's dns
// block says instead of it.
func writeResolvConf(dir string, dns *drivers.DNSConfig, hostNetwork bool) (string, error) {
	data, err := os.ReadFile(hostResolvConf)
	if err != nil && !os.IsNotExist(err) {
		return "", err
	}
	if !hostNetwork && bytes.Contains(data, []byte(resolvedStub)) {
		if real, err := os.ReadFile(resolvedResolvConf); err == nil {
			data = real
		}
	}
	return replaceFile(dir, "resolv.conf", resolvConf(string(data), dns))
}

// resolvConf is a host's resolv.conf with the parts replaced that the dns block gives.
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
