package device

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// TestEnforcement covers what enforces limits on GPUs whose driver can do that, and on those whose driver cannot.
func TestEnforcement(t *testing.T) {
	needs.Root(t, "to make cgroups")
	for name, tc := range map[string]struct {
		option  string
		able    bool
		want    claim.Enforcement
		healthy bool
	}{
		"auto, able":     {"auto", true, claim.EnforcementDriver, true},
		"auto, unable":   {"auto", false, claim.EnforcementLibrary, true},
		"driver, able":   {"driver", true, claim.EnforcementDriver, true},
		"driver, unable": {"driver", false, claim.EnforcementLibrary, false},
		"library, able":  {"library", true, claim.EnforcementLibrary, true},
	} {
		t.Run(name, func(t *testing.T) {
			driver := nvmltest.New(nvmltest.H200(0))
			if tc.able {
				driver.AllowMemoryLimits()
			}
			p := newPlugin(t, driver, map[string]any{"enforcement": tc.option})
			group := next(t, fingerprint(t, p)).Devices[0]
			must.Eq(t, string(tc.want), *group.Attributes["enforcement"].String)
			must.Eq(t, tc.healthy, group.Devices[0].Healthy)
			if !tc.healthy {
				must.StrContains(t, group.Devices[0].HealthDesc, `enforcement = "driver", but the driver cannot limit memory on this GPU: `)
				must.StrContains(t, group.Devices[0].HealthDesc, "Not Supported")
				return
			}
			shared, err := layout.Read(p.node.Load().runDir)
			must.NoError(t, err)
			must.Eq(t, tc.want, shared[nvmltest.H200(0).UUID].Enforcement)
			_, err = p.Reserve([]string{claim.SliceName(nvmltest.H200(0).UUID, 0)})
			must.NoError(t, err)
			claims, _, err := p.node.Load().ledger.List(t.Context())
			must.NoError(t, err)
			must.Eq(t, tc.want, claims[0].Enforced())
		})
	}
}
