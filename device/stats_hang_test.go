package device

import (
	"sync/atomic"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"
)

// A GPU that does not answer is missing in the statistics. Those of the others, and of claims, continue, whichever call it is
// that hangs.
func TestStats_HangingGPU(t *testing.T) {
	for name, install := range map[string]func(gpu *server.Device, hang func()){
		"telemetry": func(gpu *server.Device, hang func()) {
			gpu.GetPowerUsageFunc = func() (uint32, gonvml.Return) { hang(); return 68000, gonvml.SUCCESS }
		},
		"a look at all GPUs": func(gpu *server.Device, hang func()) {
			gpu.GetNameFunc = func() (string, gonvml.Return) { hang(); return "A100", gonvml.SUCCESS }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := dgxa100.New()
			library := onServer(t, s)
			var hanging atomic.Pointer[chan struct{}]
			install(s.Devices[0].(*server.Device), func() {
				if until := hanging.Load(); until != nil {
					<-*until
				}
			})
			p := newPlugin(t, library, map[string]any{"slice_memory": "10GiB", "fingerprint_period": "1h"})
			next(t, fingerprint(t, p))
			found, err := library.Read(t.Context())
			must.NoError(t, err)
			_, err = p.Reserve(sliceIDs(found.GPUs[0], 0))
			must.NoError(t, err)
			stream := stats(t, p, 10*time.Millisecond)
			must.Eq(t, [2]string{"68/700W", "68/700W"}, powers(t, next(t, stream)))

			until := make(chan struct{})
			hanging.Store(&until)
			looked := make(chan struct{})
			go func() { defer close(looked); _, _ = library.Read(t.Context()) }()
			for range 5 {
				response := next(t, stream)
				must.Eq(t, "68/700W", powers(t, response)[1])
				claimed := response.Groups[0].InstanceStats[sliceIDs(found.GPUs[0], 0)[0]]
				must.Eq(t, "0/10240MiB", texts(claimed)["Claim memory"])
			}
			close(until)
			<-looked
			for powers(t, next(t, stream))[0] != "68/700W" {
			}
		})
	}
}

// powers are what the first two GPUs draw.
func powers(t *testing.T, response *ndevice.StatsResponse) (powers [2]string) {
	t.Helper()
	for i := range powers {
		for id, device := range response.Groups[i].InstanceStats {
			if power := texts(device)["Power usage"]; power != "" {
				powers[i] = power
				must.StrContains(t, id, "/slice-000")
			}
		}
	}
	return powers
}
