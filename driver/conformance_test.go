package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
)

// Nomad's own test of the dns block. Its tests of exec are run by TestExec_NomadConformance.
func TestDNS_NomadConformance(t *testing.T) {
	cases := []struct {
		name string
		dns  *drivers.DNSConfig
	}{
		{"none", nil},
		{"servers", &drivers.DNSConfig{Servers: []string{"1.1.1.1", "1.0.0.1"}}},
		{"all", &drivers.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"local.test", "node.consul"},
			Options: []string{"ndots:2", "edns0"}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := newTestDriver(t)
			cfg := d.task("sleep 600")
			cfg.DNS = c.dns
			d.start(cfg)
			dtestutil.TestTaskDNSConfig(t, d.DriverHarness, cfg.ID, c.dns)
		})
	}
}
