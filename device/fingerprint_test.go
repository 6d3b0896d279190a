package device

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// groupNames lists the names of the groups, with an exclamation mark behind
// those that have an unhealthy device.
func groupNames(response *ndevice.FingerprintResponse) []string {
	names := []string{}
	for _, group := range response.Devices {
		name := group.Name
		for _, dev := range group.Devices {
			if !dev.Healthy {
				name += "!"
				break
			}
		}
		names = append(names, name)
	}
	return names
}

func TestFingerprint_groups(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	b.ReservedBytes = 500 * mebi
	p := newPlugin(t, nvmltest.New(a, b), nil)
	stream := fingerprint(t, p)
	response := next(t, stream)
	must.NoError(t, response.Error)
	must.Eq(t, []string{"NVIDIA H200 #0", "NVIDIA H200 #1"}, groupNames(response))

	group := response.Devices[0]
	must.NoError(t, group.Validate())
	must.Eq(t, "nvidia", group.Vendor)
	must.Eq(t, "slice", group.Type)
	must.Len(t, 140, group.Devices)
	must.Eq(t, &ndevice.Device{
		ID: a.UUID + "/slice-007", Healthy: true, HwLocality: &ndevice.DeviceLocality{PciBusID: "00000000:18:00.0"},
	}, group.Devices[7])
	must.Len(t, 139, response.Devices[1].Devices, must.Sprint("what the driver reserves was offered"))

	must.Eq(t, map[string]*structs.Attribute{
		"model":              structs.NewStringAttribute("NVIDIA H200"),
		"index":              structs.NewIntAttribute(0, ""),
		"isolation":          structs.NewStringAttribute("memory"),
		"mode":               structs.NewStringAttribute("slice"),
		"enforcement":        structs.NewStringAttribute("library"),
		"power":              structs.NewIntAttribute(0, "W"),
		"pci_bandwidth":      structs.NewIntAttribute(0, "MB/s"),
		"memory":             structs.NewIntAttribute(143771, "MiB"),
		"slice_memory":       structs.NewIntAttribute(1024, "MiB"),
		"slices":             structs.NewIntAttribute(140, ""),
		"healthy_slices":     structs.NewIntAttribute(140, ""),
		"driver_version":     structs.NewStringAttribute("570.124.06"),
		"cuda_version":       structs.NewFloatAttribute(12.8, ""),
		"compute_capability": structs.NewFloatAttribute(9.0, ""),
		"unique.uuid":        structs.NewStringAttribute(a.UUID),
		"unique.pci_bus_id":  structs.NewStringAttribute("00000000:18:00.0"),
	}, group.Attributes)
	quiet(t, stream)
}

// Names and attributes make up Nomad's node class, unless they begin with
// "unique.": they must not identify a GPU among those of its model.
func TestFingerprint_nodeClass(t *testing.T) {
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0), nvmltest.H200(1)), nil)
	stream := fingerprint(t, p)
	for i, group := range next(t, stream).Devices {
		g := nvmltest.H200(i)
		for _, mark := range []string{g.UUID, g.PCIBusID} {
			must.StrNotContains(t, group.Name, mark)
			for name, attribute := range group.Attributes {
				if !strings.HasPrefix(name, "unique.") {
					must.StrNotContains(t, attribute.GoString(), mark, must.Sprint(name))
				}
			}
		}
	}
}

func TestFingerprint_ignored(t *testing.T) {
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0), nvmltest.H200(1)),
		map[string]any{"ignored_gpu_ids": []string{nvmltest.H200(0).UUID}})
	stream := fingerprint(t, p)
	must.Eq(t, []string{"NVIDIA H200 #1"}, groupNames(next(t, stream)))

	_, err := p.Reserve(sliceIDs(nvmltest.H200(0), 0))
	must.ErrorContains(t, err, "not devices of this node's GPUs")
}

// A GPU that stops answering, is no longer listed, or whose driver is gone is
// told of as unhealthy, with a reason, under the name that it had; and as
// healthy again when it is back.
func TestFingerprint_lostGPU(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	moved := b
	moved.Index = 0
	cases := []struct {
		name, reason string
		lose         func(fake *nvmltest.Fake)
		want         []string
	}{
		{
			name: "does not answer", reason: "the GPU does not answer: GPU is lost", want: []string{"NVIDIA H200 #0!", "NVIDIA H200 #1"},
			lose: func(fake *nvmltest.Fake) {
				fake.SetFailed(nvml.Failure{Index: 0, UUID: a.UUID, Err: errors.New("GPU is lost")})
				fake.SetGPUs(b)
			},
		},
		{
			name: "no longer listed, the others numbered anew", want: []string{"NVIDIA H200 #0!", "NVIDIA H200 #1"},
			reason: "the driver no longer lists the GPU: it fell off the bus or was taken out",
			lose:   func(fake *nvmltest.Fake) { fake.SetGPUs(moved) },
		},
		{
			name: "no driver", reason: "the GPU driver does not answer: driver not loaded",
			want: []string{"NVIDIA H200 #0!", "NVIDIA H200 #1!"},
			lose: func(fake *nvmltest.Fake) { fake.SetError(errors.New("driver not loaded")) },
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			fake := nvmltest.New(a, b)
			p := newPlugin(t, fake, nil)
			stream := fingerprint(t, p)
			must.Eq(t, []string{"NVIDIA H200 #0", "NVIDIA H200 #1"}, groupNames(next(t, stream)))

			tc.lose(fake)
			response := next(t, stream)
			must.NoError(t, response.Error)
			must.Eq(t, tc.want, groupNames(response))
			must.Len(t, 140, response.Devices[0].Devices)
			for _, dev := range response.Devices[0].Devices {
				must.False(t, dev.Healthy)
				must.Eq(t, tc.reason, dev.HealthDesc)
			}
			quiet(t, stream)

			// In a new session the UUID of the GPU is unknown.
			fake.SetFailed(nvml.Failure{Index: 0, Err: errors.New("GPU is lost")})
			quiet(t, stream)

			_, err := p.Reserve(sliceIDs(a, 0))
			must.EqError(t, err, "the GPU NVIDIA H200 #0 ("+a.UUID+") cannot be used: "+tc.reason)

			fake.SetError(nil)
			fake.SetFailed()
			fake.SetGPUs(a, b)
			response = next(t, stream)
			must.Eq(t, []string{"NVIDIA H200 #0", "NVIDIA H200 #1"}, groupNames(response))
			must.Eq(t, "", response.Devices[0].Devices[0].HealthDesc)
		})
	}
}

// A driver that hangs holds up nothing, and its GPUs are unhealthy meanwhile.
func TestFingerprint_stuckDriver(t *testing.T) {
	g := nvmltest.H200(0)
	fake := nvmltest.New(g)
	p := newPlugin(t, fake, nil)
	p.node.Load().driver.Timeout = 50 * time.Millisecond
	stream := fingerprint(t, p)
	await := func(names string) *ndevice.FingerprintResponse { // a busy machine may take as long as a stuck driver
		response := next(t, stream)
		for !slices.Equal(groupNames(response), []string{names}) {
			response = next(t, stream)
		}
		return response
	}
	await("NVIDIA H200 #0")
	unstick := fake.Stick()
	response := await("NVIDIA H200 #0!")
	must.Eq(t, "the GPU driver does not answer: context deadline exceeded", response.Devices[0].Devices[0].HealthDesc)
	unstick()
	await("NVIDIA H200 #0")
}

// The stream ends with its context, even while the driver doesn't answer.
func TestFingerprint_streamEnds(t *testing.T) {
	fake := nvmltest.New(nvmltest.H200(0))
	p := newPlugin(t, fake, nil)
	ctx, cancel := contextWithCancel(t)
	stream, err := p.Fingerprint(ctx)
	must.NoError(t, err)
	next(t, stream)
	defer fake.Stick()()
	cancel()
	_, open := <-stream
	must.False(t, open)
}

// What statistics notice reaches Nomad without waiting for the period.
func TestFingerprint_wokenByStats(t *testing.T) {
	fake := nvmltest.New(nvmltest.H200(0))
	p := newPlugin(t, fake, map[string]any{"fingerprint_period": "1h"})
	stream := fingerprint(t, p)
	next(t, stream)
	fake.SetGPUs()
	statistics := stats(t, p, 1)
	next(t, statistics)
	must.Eq(t, []string{"NVIDIA H200 #0!"}, groupNames(next(t, stream)))
}

func TestFingerprint_noDriver(t *testing.T) {
	fake := nvmltest.New()
	fake.SetError(&nvml.NoDriverError{DriverRoot: "/x", Err: errors.New("no libnvidia-ml.so.1 in the driver root /x (searched /x/a, /x/b)")})
	log := &strings.Builder{}
	p := New(hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return fake }
	must.NoError(t, p.SetConfig(pluginConfig(t, testOptions(t, nil))))
	ctx, cancel := contextWithCancel(t)
	stream, err := p.Fingerprint(ctx)
	must.NoError(t, err)
	must.SliceEmpty(t, next(t, stream).Devices, must.Sprint("Nomad waits for a first message"))
	for reads := fake.Reads(); fake.Reads() < reads+3; {
		quiet(t, stream)
	}

	fake.SetError(nil)
	fake.SetGPUs(nvmltest.H200(0))
	must.Eq(t, []string{"NVIDIA H200 #0"}, groupNames(next(t, stream)))
	cancel()
	for range stream {
	}
	must.Eq(t, 1, strings.Count(log.String(), "no GPU driver"), must.Sprint(log.String()))
	must.StrContains(t, log.String(), "no libnvidia-ml.so.1 in the driver root /x (searched /x/a, /x/b)")
	must.StrContains(t, log.String(), "the GPU driver answers")
}

// A GPU that never answered has no name to publish; it is logged, once.
func TestFingerprint_neverAnswered(t *testing.T) {
	fake := nvmltest.New(nvmltest.H200(1))
	fake.SetFailed(nvml.Failure{Index: 0, Err: errors.New("GPU is lost")})
	log := &strings.Builder{}
	p := New(hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}), "v0.0.1")
	p.newNVML = func(string) nvml.Interface { return fake }
	must.NoError(t, p.SetConfig(pluginConfig(t, testOptions(t, nil))))
	ctx, cancel := contextWithCancel(t)
	stream, err := p.Fingerprint(ctx)
	must.NoError(t, err)
	must.Eq(t, []string{"NVIDIA H200 #1"}, groupNames(next(t, stream)))
	quiet(t, stream)
	cancel()
	for range stream {
	}
	must.Eq(t, 1, strings.Count(log.String(), "a GPU does not answer and is not offered: index=0"), must.Sprint(log.String()))
}

func TestFingerprint_sliceLargerThanGPU(t *testing.T) {
	p := newPlugin(t, nvmltest.New(nvmltest.H200(0)), map[string]any{"slice_memory": "1TiB"})
	stream := fingerprint(t, p)
	devices := next(t, stream).Devices[0].Devices
	must.Len(t, 1, devices)
	must.False(t, devices[0].Healthy)
	must.Eq(t, "slice_memory is 1024GiB, but the GPU has only 143771MiB for processes: set it to less", devices[0].HealthDesc)
}

// Slices that somebody outside Nomad uses are unhealthy, so that Nomad leaves
// them alone; those that a Nomad claim has are Nomad's own business.
func TestFingerprint_ExternalUse(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), nil)
	ledger := p.node.Load().ledger
	reservation, err := p.Reserve(sliceIDs(g, 5))
	must.NoError(t, err)
	own, err := ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	self := claim.Container{Runtime: "test", ID: "c", InitPID: os.Getpid()}
	must.NoError(t, ledger.Bind(t.Context(), own.ID, self))
	external, _, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: g.UUID}, Slices: sliceIDs(g, 1, 2), LimitBytes: 2 << 30, Owner: claim.OwnerRun,
	})
	must.NoError(t, err)
	stream := fingerprint(t, p)
	must.Eq(t, []string{"NVIDIA H200 #0"}, groupNames(next(t, stream)))

	must.NoError(t, ledger.Bind(t.Context(), external.ID, self))
	unhealthy := map[string]string{}
	for _, dev := range next(t, stream).Devices[0].Devices {
		if !dev.Healthy {
			unhealthy[dev.ID] = dev.HealthDesc
		}
	}
	reason := "used outside Nomad by claim " + external.ID + " (run)"
	must.Eq(t, map[string]string{g.UUID + "/slice-001": reason, g.UUID + "/slice-002": reason}, unhealthy)
}
