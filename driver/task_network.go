package driver

import "github.com/tranche-gpu/tranche/driver/network"

// networkOptions are the task's options about its network.
func (c *TaskConfig) networkOptions() *network.Options {
	return &network.Options{Mode: c.NetworkMode, Hostname: c.Hostname, ExtraHosts: c.ExtraHosts,
		DNSServers: c.DNSServers, DNSSearchDomains: c.DNSSearchDomains, DNSOptions: c.DNSOptions}
}
