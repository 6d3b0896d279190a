package device

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/governor/status"
)

// text writes a statistic as Nomad shows it.
func text(v *structs.StatValue) string {
	if v == nil {
		return ""
	}
	if v.StringVal != nil {
		return *v.StringVal
	}
	if v.FloatNumeratorVal != nil {
		return fmt.Sprint(*v.FloatNumeratorVal) + v.Unit
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

// A governed claim also shows what it has of the GPU's time, and what it has had where a governor says so.
func TestStats_Turns(t *testing.T) {
	g := nvmltest.H200(0)
	options := testOptions(t, nil)
	runDir := options["run_dir"].(string)
	ledger, err := claim.Open(claim.Options{StateDir: options["state_dir"].(string), RunDir: runDir})
	must.NoError(t, err)
	made, _, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: g.UUID, Name: g.Name}, Slices: sliceIDs(g, 3, 4), LimitBytes: 2 << 30, Owner: claim.OwnerNomad,
		Compute: &claim.Compute{Share: 14, Max: 500, Class: claim.ClassNormal},
	})
	must.NoError(t, err)
	p := newPlugin(t, nvmltest.New(g), options)
	fingerprintOnce(t, p)
	turns := func() map[string]string {
		ctx, cancel := contextWithCancel(t)
		stream, err := p.Stats(ctx, time.Minute)
		must.NoError(t, err)
		first := texts(next(t, stream).Groups[0].InstanceStats[sliceIDs(g, 3)[0]])
		cancel()
		for range stream {
		}
		maps.DeleteFunc(first, func(name, _ string) bool {
			return !strings.HasPrefix(name, "Claim compute") && name != "Claim processes not joined"
		})
		return first
	}
	share := map[string]string{"Claim compute share": "1.4%", "Claim compute ceiling": "50%"}
	must.Eq(t, share, turns())

	said := status.Status{Written: time.Now(), Claims: map[string]status.Claim{made.ID: {
		GPUSeconds: 12.5, RecentPart: 0.0141, WaitingSeconds: 2, Overruns: 3, NotJoined: make([]status.Process, 1),
	}}}
	must.NoError(t, status.Write(runDir, said))
	must.Eq(t, with(share, map[string]string{
		"Claim compute had": "1.41%", "Claim compute time": "12.5s", "Claim compute waited": "2s", "Claim compute overruns": "3",
		"Claim processes not joined": "1",
	}), turns())
	said.Written = time.Now().Add(-time.Hour)
	must.NoError(t, status.Write(runDir, said))
	must.Eq(t, share, turns())
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
