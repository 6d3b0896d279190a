package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device/proto"
	shared "github.com/hashicorp/nomad/plugins/shared/structs/proto"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
)

// The kernel's other account of the same process stands on either side.
func TestCPUTime(t *testing.T) {
	own := func() time.Duration {
		var usage unix.Rusage
		must.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	const enough, tick = 50 * time.Millisecond, 10 * time.Millisecond
	for own() < enough {
		continue
	}
	before := own()
	used, err := cpuTime(os.Getpid())
	must.NoError(t, err)
	// What other threads are in the midst of, that account has at the next tick only.
	must.Between(t, before-tick, used, own()+tick)

	_, err = cpuTime(1 << 22) // no process has so high an ID
	must.ErrorContains(t, err, "process 4194304")
}

func TestCheckMessage(t *testing.T) {
	device := func(healthy bool) *proto.DetectedDevice {
		return &proto.DetectedDevice{ID: "GPU-1/slice-000", Healthy: healthy, HealthDescription: "off the bus"}
	}
	group := func(devices ...*proto.DetectedDevice) *proto.DeviceGroup { return &proto.DeviceGroup{Devices: devices} }
	two := &proto.FingerprintResponse{DeviceGroup: []*proto.DeviceGroup{group(device(true)), group(device(true), device(true))}}
	must.NoError(t, checkMessage(two, 2, 3))
	must.ErrorContains(t, checkMessage(two, 2, 4), "2 groups with 3 devices")
	must.ErrorContains(t, checkMessage(two, 1, 3), "2 groups with 3 devices")
	lost := &proto.FingerprintResponse{DeviceGroup: []*proto.DeviceGroup{group(device(true), device(false))}}
	must.ErrorContains(t, checkMessage(lost, 1, 2), "GPU-1/slice-000 is unhealthy: off the bus")
	must.True(t, allHealthy(two))
	must.False(t, allHealthy(lost))
}

func TestCheckStatistics(t *testing.T) {
	message := func(slices, claimed int) *proto.StatsResponse {
		group := &proto.DeviceGroupStats{InstanceStats: map[string]*proto.DeviceStats{}}
		for i := range slices {
			stats := &proto.DeviceStats{Stats: &shared.StatObject{Attributes: map[string]*shared.StatValue{}}}
			if i < claimed {
				stats.Stats.Attributes["Claim"] = &shared.StatValue{}
			}
			group.InstanceStats[claim.SliceName("GPU-1", i)] = stats
		}
		return &proto.StatsResponse{Groups: []*proto.DeviceGroupStats{group}}
	}
	must.NoError(t, checkStatistics(message(deviceGPUs*deviceSlices, 100), 100))
	must.ErrorContains(t, checkStatistics(message(deviceGPUs*deviceSlices, 99), 100), "99 of them of claims")
	must.ErrorContains(t, checkStatistics(message(deviceSlices, 0), 0), "of 141 slices")
}

func TestDeviceCounts(t *testing.T) {
	must.NoError(t, deviceCounts{1, 1, 1}.check())
	for _, c := range []deviceCounts{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}} {
		_, err := (&bench{}).device(context.Background(), c)
		must.ErrorContains(t, err, "1 or more")
	}
}
