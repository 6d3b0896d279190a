package network

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/hashicorp/nomad/drivers/shared/hostnames"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/internal/thread"
)

const (
	hostHosts = "/etc/hosts"
	// maxHostsBytes bounds what is read of a group's hosts file, to which tasks may have written.
	maxHostsBytes = 1 << 20
)

// localHosts are the lines that every hosts file of ours begins with.
const localHosts = `127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
fe00::0 ip6-localnet
ff00::0 ip6-mcastprefix
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
`

// hostLine is a line of a hosts file.
type hostLine struct {
	name    string
	address netip.Addr
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`)

// parseExtraHost parses an entry of extra_hosts, "NAME:ADDRESS". An IPv6 address may stand in brackets.
func parseExtraHost(entry string) (hostLine, error) {
	name, text, _ := strings.Cut(entry, ":")
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if text, ok = strings.CutSuffix(inner, "]"); !ok {
			text = ""
		}
	}
	address, err := netip.ParseAddr(text)
	if err != nil || !hostName.MatchString(name) || strings.ContainsFunc(text, unicode.IsSpace) {
		return hostLine{}, errors.New("must be NAME:ADDRESS with an IP address, such as \"db:10.0.0.7\" or \"db:[fd00::7]\"")
	}
	return hostLine{name, address}, nil
}

// extraHosts returns the lines of extra_hosts.
func (o *Options) extraHosts() ([]hostLine, error) {
	var lines []hostLine
	var errs []error
	for i, entry := range o.ExtraHosts {
		line, err := parseExtraHost(entry)
		if err != nil {
			errs = append(errs, fmt.Errorf("option extra_hosts[%d] = %q: %w", i, entry, err))
			continue
		}
		lines = append(lines, line)
	}
	return lines, errors.Join(errs...)
}

// hostsMount returns the mount over the container's /etc/hosts.
//
// The tasks of a group share one file, which Nomad's code writes beside their directories, and may write to it. A task whose
// names differ has a file of its own: the shared one is written once, without the names of tasks that start later.
func (n *Network) hostsMount(cfg *drivers.TaskConfig, extra []hostLine) (*specs.Mount, error) {
	if len(extra) == 0 {
		if m, ok, err := n.sharedHosts(cfg); ok || err != nil {
			return m, err
		}
	}
	text, err := n.ownHosts(cfg, extra)
	if err != nil {
		return nil, err
	}
	file, err := replaceFile(cfg.TaskDir().Dir, "hosts", text, n.Owner)
	if err != nil {
		return nil, err
	}
	m := storage.Bind(file, hostHosts, storage.Private, n.options.Readonly)
	return &m, nil
}

// sharedHosts returns the mount of a file that the group's other tasks have, too, if it has all that the task needs.
func (n *Network) sharedHosts(cfg *drivers.TaskConfig) (*specs.Mount, bool, error) {
	if n.Mode != Bridge {
		return nil, false, nil
	}
	config, err := n.groupName(cfg)
	if err != nil || config == nil || config.Hostname != n.hostname {
		return nil, false, err
	}
	if err := dropStaleHosts(filepath.Join(cfg.AllocDir, "hosts"), config); err != nil {
		return nil, false, err
	}
	group := *cfg.NetworkIsolation
	group.HostsConfig = config
	hosts, err := hostnames.GenerateEtcHostsMount(cfg.AllocDir, &group, nil)
	if err != nil || hosts == nil {
		return nil, false, err
	}
	m := storage.Bind(hosts.HostPath, hosts.TaskPath, storage.Private, hosts.Readonly)
	return &m, true, nil
}

// dropStaleHosts removes a group's file that has another address. After a restart of the machine Nomad gives an allocation
// a new network, and finds the file of the old one. What the tasks have added to a file of this network stays.
func dropStaleHosts(file string, config *drivers.HostsConfig) error {
	shared, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer shared.Close()
	lines := bufio.NewScanner(io.LimitReader(shared, maxHostsBytes))
	for lines.Scan() {
		if lines.Text() == config.Address+" "+config.Hostname {
			return nil
		}
	}
	return os.Remove(file)
}

// groupName returns the name and the address of the group's network; nil where it has no address. Nomad states both for
// networks that its docker driver makes. For those that it makes itself, the namespace has the address.
func (n *Network) groupName(cfg *drivers.TaskConfig) (*drivers.HostsConfig, error) {
	if config := cfg.NetworkIsolation.HostsConfig; config != nil && config.Address != "" && config.Hostname != "" {
		return config, nil
	}
	address, err := addressIn(n.path)
	if err != nil || address == "" {
		return nil, err
	}
	return &drivers.HostsConfig{Address: address, Hostname: n.hostname}, nil
}

// addressIn returns the first address of a network namespace beyond its own loopback interface.
func addressIn(namespace string) (string, error) {
	file, err := os.Open(namespace)
	if err != nil {
		return "", fmt.Errorf("open the group's network namespace: %w", err)
	}
	defer file.Close()
	var addresses []net.Addr
	err = thread.Run(func() error {
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		addresses, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the address of the group's network namespace %s: %w", namespace, err)
	}
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if ip := prefix.Addr(); err == nil && ip.IsGlobalUnicast() {
			return ip.String(), nil
		}
	}
	return "", nil
}

// ownHosts returns the text of a hosts file for this task alone.
func (n *Network) ownHosts(cfg *drivers.TaskConfig, extra []hostLine) (string, error) {
	text, own := localHosts, "127.0.0.1 "+n.hostname
	switch n.Mode {
	case Host:
		hostname, err := os.Hostname()
		if err != nil {
			return "", err
		}
		if hostname == n.hostname {
			own = "" // The host's file has it.
		}
		data, err := os.ReadFile(hostHosts)
		if err == nil {
			text = strings.TrimRight(string(data), "\n") + "\n"
		} else if !os.IsNotExist(err) {
			return "", err
		}
	case Bridge:
		group, err := n.groupName(cfg)
		if err != nil {
			return "", err
		}
		if group != nil {
			own = group.Address + " " + n.hostname
		}
	}
	var out strings.Builder
	out.WriteString(text)
	if own != "" {
		fmt.Fprintln(&out, own)
	}
	for _, line := range extra {
		fmt.Fprintln(&out, line.address, line.name)
	}
	return out.String(), nil
}
