package device

import (
	"testing"
	"time"

	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"tranche.dev/tranche/claim"
	"tranche.dev/tranche/device/nvml/nvmltest"
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
	g.UsedBytes, g.UtilizationPercent = 5000*mebi, 42
	p := newPlugin(t, nvmltest.New(g), nil)
	reservation, err := p.Reserve(sliceIDs(g, 3, 4))
	must.NoError(t, err)
	id := tokenOf(t, reservation.Envs).EnvName()[len(claim.EnvPrefix):]

	ctx, cancel := contextWithCancel(t)
	stream, err := p.Stats(ctx, 50*time.Millisecond)
	must.NoError(t, err)
	response := next(t, stream)
	must.NoError(t, response.Error)
	must.Len(t, 1, response.Groups)
	group := response.Groups[0]
	must.Eq(t, "nvidia/slice/NVIDIA H200 #0", group.Vendor+"/"+group.Type+"/"+group.Name)
	must.MapLen(t, 140, group.InstanceStats)
	must.Eq(t, map[string]string{
		"summary": "0/1024MiB", "GPU memory": "5000/143771MiB", "GPU utilization": "42%",
	}, texts(group.InstanceStats[sliceIDs(g, 0)[0]]))
	for _, slice := range sliceIDs(g, 3, 4) {
		must.Eq(t, map[string]string{
			"summary": "0/2048MiB", "GPU memory": "5000/143771MiB", "GPU utilization": "42%",
			"Claim": id, "Claim slices": "2", "Claim memory": "0/2048MiB", "Claim peak memory": "0/2048MiB",
			"Claim processes": "0", "Claim refused allocations": "0",
		}, texts(group.InstanceStats[slice]))
	}
	next(t, stream)
	cancel()
	for range stream {
	}
}

func TestStats_utilisationUnknown(t *testing.T) {
	g := nvmltest.H200(0)
	g.UtilizationPercent = -1
	p := newPlugin(t, nvmltest.New(g), nil)
	must.NoError(t, p.node.Load().scan(t.Context()))
	stream := stats(t, p, time.Hour)
	slice := next(t, stream).Groups[0].InstanceStats[sliceIDs(g, 0)[0]]
	must.MapNotContainsKey(t, slice.Stats.Attributes, "GPU utilization")
}

func TestStats_noInterval(t *testing.T) {
	_, err := newPlugin(t, nvmltest.New(), nil).Stats(t.Context(), 0)
	must.EqError(t, err, "statistics every 0s were asked for, which is no interval")
}
