package spec

import (
	"testing"

	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestWithCapabilities(t *testing.T) {
	nomads := capabilities.NomadDefaults().Slice(false)
	cases := []struct {
		name      string
		allow     []string
		add, drop []string
		want      []string
	}{
		{"Nomad's", nomads, nil, nil, capabilities.NomadDefaults().Slice(true)},
		{"fewer by the operator", []string{"chown", "net_raw"}, nil, nil, []string{"CAP_CHOWN"}},
		{"one more", []string{"all"}, []string{"net_raw"}, []string{"all"}, []string{"CAP_NET_RAW"}},
		{"none", nomads, nil, []string{"ALL"}, []string{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := apply(t, withCapabilities(&TaskConfig{CapAdd: c.add, CapDrop: c.drop}, &Config{AllowCaps: c.allow}))
			must.Eq(t, &specs.LinuxCapabilities{Bounding: c.want, Effective: c.want, Permitted: c.want}, s.Process.Capabilities)
		})
	}
}
