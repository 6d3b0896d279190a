package device

import (
	"maps"
	"testing"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// text writes a statistic as Nomad shows it.
func text(v *structs.StatValue) string {
	if v == nil {
		return ""
	}
	if v.StringVal != nil {
		return *v.StringVal
	}
	shown := structs.NewIntAttribute(*v.IntNumeratorVal, "").GoString()
	if v.IntDenominatorVal != nil {
		shown += "/" + structs.NewIntAttribute(*v.IntDenominatorVal, "").GoString()
	}
	return shown + v.Unit
}

func texts(s *ndevice.DeviceStats) map[string]string {
	all := map[string]string{"summary": text(s.Summary)}
	for name, value := range s.Stats.Attributes {
		all[name] = text(value)
	}
	return all
}

func TestStats(t *testing.T) {
	g := nvmltest.H200(0)
	fake := nvmltest.New(g)
	number := func(n int64) *int64 { return &n }
	fake.SetTelemetry(g.UUID, nvml.Telemetry{
		PowerMilliwatts: number(345_600), PowerLimitMilliwatts: number(700_000), TemperatureCelsius: number(55),
		GPUPercent: number(42), MemoryPercent: number(17), UsedBytes: number(5000 << 20), MemoryBytes: number(143771 << 20),
		BAR1UsedBytes: number(3 << 20), BAR1Bytes: number(256 << 30),
		Corrected: &nvml.CorrectedErrors{L1Cache: 1, L2Cache: 2, Memory: 3},
	})
	whole := map[string]string{
		"Power usage": "345/700W", "Temperature": "55C", "GPU utilization": "42%", "Memory utilization": "17%",
		"Memory state": "5000/143771MiB", "BAR1 buffer state": "3/262144MiB", "ECC L1 errors": "1#", "ECC L2 errors": "2#",
		"ECC memory errors": "3#", "Encoder utilization": "N/A", "Decoder utilization": "N/A",
	}
	p := newPlugin(t, fake, nil)
	reservation, err := p.Reserve(sliceIDs(g, 3, 4))
	must.NoError(t, err)
	id := tokenOf(t, reservation.Envs).EnvName()[len(claim.EnvPrefix):]
	must.NoError(t, p.node.Load().ledger.NoteWorkload(t.Context(), id, claim.Workload{
		Namespace: "ml", Job: "web", Group: "gpu", Task: "train", Allocation: "3f2a91b0-1", Verified: true,
	}))

	ctx, cancel := contextWithCancel(t)
	stream, err := p.Stats(ctx, 50*time.Millisecond)
	must.NoError(t, err)
	response := next(t, stream)
	must.NoError(t, response.Error)
	must.Len(t, 1, response.Groups)
	group := response.Groups[0]
	must.Eq(t, "nvidia/slice/NVIDIA H200 #0", group.Vendor+"/"+group.Type+"/"+group.Name)
	must.MapLen(t, 140, group.InstanceStats)
	for number, want := range []map[string]string{
		0: with(whole, map[string]string{"summary": "0/1024MiB"}),
		1: {"summary": "0/1024MiB"},
		3: with(whole, map[string]string{
			"summary": "0/1024MiB", "Claim": id, "Claim slices": "2", "Claim workload": "ml/web/gpu/train 3f2a91b0", "Claim memory": "0/2048MiB", "Claim peak memory": "0/2048MiB",
			"Claim processes": "0", "Claim uncounted memory": "0/2048MiB", "Claim refused allocations": "0",
		}),
		4: {"summary": "0/1024MiB", "Claim": id},
	} {
		if want != nil {
			must.Eq(t, want, texts(group.InstanceStats[sliceIDs(g, number)[0]]), must.Sprint(number))
		}
	}
	next(t, stream)
	cancel()
	for range stream {
	}
}

func with(base, more map[string]string) map[string]string {
	all := maps.Clone(base)
	maps.Copy(all, more)
	return all
}

func TestStats_noInterval(t *testing.T) {
	_, err := newPlugin(t, nvmltest.New(), nil).Stats(t.Context(), 0)
	must.EqError(t, err, "the interval of statistics must be positive, got 0s")
}
