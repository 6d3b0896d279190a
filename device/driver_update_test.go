package device

import (
	"maps"
	"testing"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
)

// The driver is updated under an agent that runs: the old library cannot talk to the new kernel module. The slices are
// unhealthy and say what to do; the plugin that is started then has the new library, and they are back. Claims stay.
func TestProcess_DriverUpdate(t *testing.T) {
	node := simtest.H200x2(t)
	options := testOptions(t, map[string]any{"driver_root": node.DriverRoot})
	p := startProcess(t, options)
	stream := fingerprint(t, p)
	before := healthReasons(next(t, stream))
	must.Eq(t, map[string]int{"": 280}, before)
	ids := []string{simtest.H200UUID0 + "/slice-000"}
	_, err := p.Reserve(ids)
	must.NoError(t, err)

	node.Run(t, "fault", "driver", "unload")
	node.Run(t, "fault", "mismatch", "on")
	node.Run(t, "fault", "driver", "load")
	const refused = "the GPU driver does not answer: NVML could not begin a session: the driver was replaced while this process had " +
		"the old library loaded: restart it (of the device plugin, restart the Nomad agent; tasks go on running): Driver/library " +
		"version mismatch"
	for now := before; !maps.Equal(now, map[string]int{refused: 280}); {
		now = healthReasons(next(t, stream))
		t.Logf("%v", now)
	}
	_, err = p.Reserve(ids)
	must.ErrorContains(t, err, "restart the Nomad agent")
	must.NoError(t, p.cmd.Process.Kill())

	node.Run(t, "fault", "mismatch", "off") // the library that a new process loads is the new driver's
	p = startProcess(t, options)
	must.Eq(t, before, healthReasons(next(t, fingerprint(t, p))))
	ledger, err := claim.Open(claim.Options{StateDir: options["state_dir"].(string), RunDir: options["run_dir"].(string)})
	must.NoError(t, err)
	claims, _, err := ledger.List(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, claims)
}

// healthReasons counts devices by what makes them unhealthy; nothing does the healthy ones.
func healthReasons(response *ndevice.FingerprintResponse) map[string]int {
	count := map[string]int{}
	for _, group := range response.Devices {
		for _, d := range group.Devices {
			count[d.HealthDesc]++
		}
	}
	return count
}
