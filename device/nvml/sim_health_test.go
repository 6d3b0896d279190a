package nvml_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// The GPUs of the topology h200-t4.conf.
const (
	hopper = simtest.H200UUID0
	turing = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e000000a4"
)

// soon is how long anything may take that happens without a hurry.
const soon = time.Minute

// simulated is a session on a simulated H200 and a T4, with who listens to their
// events. The library that go-nvml loaded first serves all tests of the process;
// it looks for its node when a session begins.
type simulated struct {
	*simtest.Node
	library *nvml.Library
	events  <-chan nvml.Event
	// xid is a number that no test has posted yet.
	xid int
}

func newSimulated(t *testing.T) *simulated {
	node := simtest.New(t, "h200-t4.conf")
	library := nvml.New(node.DriverRoot)
	nvml.Hurry(library)
	s := &simulated{Node: node, library: library, events: library.Events(t.Context()), xid: 1000}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		must.NoError(t, library.Close(ctx))
	})
	return s
}

// read is what the driver says now.
func (s *simulated) read(t *testing.T) *nvml.Node {
	t.Helper()
	node, err := s.library.Read(t.Context())
	must.NoError(t, err)
	return node
}

// readUntil reads until the node is as it should become.
func (s *simulated) readUntil(t *testing.T, want string, ok func(*nvml.Node, error) bool) *nvml.Node {
	t.Helper()
	for deadline := time.Now().Add(soon); ; {
		node, err := s.library.Read(t.Context())
		if ok(node, err) {
			return node
		}
		must.True(t, time.Now().Before(deadline), must.Sprintf("it is not so: %s; %+v, %v", want, node, err))
	}
}

// listens has events of the GPU arrive, from now on: those from before a session
// has subscribed never do.
func (s *simulated) listens(t *testing.T, gpu, uuid string) {
	t.Helper()
	for deadline := time.Now().Add(soon); ; {
		s.xid++
		s.Run(t, "fault", "xid", gpu, strconv.Itoa(s.xid))
		again := time.After(300 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case event := <-s.events:
				if event == (nvml.Event{UUID: uuid, Xid: uint64(s.xid)}) {
					return
				}
			case <-again:
				waiting = false
			}
		}
		must.True(t, time.Now().Before(deadline), must.Sprint("no event arrives"))
	}
}

// next is the next event.
func (s *simulated) next(t *testing.T) nvml.Event {
	t.Helper()
	select {
	case event := <-s.events:
		return event
	case <-time.After(soon):
		t.Fatal("no event arrives")
		return nvml.Event{}
	}
}

func (s *simulated) set(t *testing.T, gpu string, settings map[string]string) {
	t.Helper()
	for name, value := range settings {
		s.Run(t, "set", gpu, name, value)
	}
}

func ptr[T any](value T) *T { return &value }

func TestLibrary_simulatedTraits(t *testing.T) {
	s := newSimulated(t)
	s.set(t, "0", map[string]string{"power_mw": "80500", "graphics_mhz": "1410", "memory_mhz": "2619",
		"bar1_mib": "65536", "pcie_width": "8", "pcie_generation": "4", "display_mode": "1", "persistence_mode": "0"})
	s.set(t, "1", map[string]string{"power_mw": "unsupported", "memory_mhz": "unsupported", "bar1_mib": "unsupported"})
	traits := nvml.Traits{
		PowerMilliwatts: ptr[int64](80500), GraphicsMHz: ptr[int64](1410),
		MemoryMHz: ptr[int64](2619), BAR1Bytes: ptr[int64](64 << 30), PCIeWidth: ptr[int64](8), PCIeGeneration: ptr[int64](4),
		DisplayMode: ptr(true), PersistenceMode: ptr(false), Cores: ptr[int64](132 * 128),
	}
	node := s.read(t)
	must.Eq(t, traits, node.GPUs[0].Traits)
	must.Eq(t, 132, node.GPUs[0].SMs())
	must.Eq(t, 500<<20, node.GPUs[0].ReservedBytes)
	must.Nil(t, node.GPUs[1].PowerMilliwatts)
	must.Nil(t, node.GPUs[1].MemoryMHz)
	must.Nil(t, node.GPUs[1].BAR1Bytes)
	must.Eq(t, 40, node.GPUs[1].SMs())

	// They are asked once, as long as the GPU is there.
	s.set(t, "0", map[string]string{"power_mw": "300000", "graphics_mhz": "1980"})
	must.Eq(t, traits, s.read(t).GPUs[0].Traits)
	s.Run(t, "fault", "lost", "0", "on")
	must.Len(t, 1, s.read(t).Failed)
	s.Run(t, "fault", "lost", "0", "off")
	node = s.readUntil(t, "the GPU is back", func(n *nvml.Node, err error) bool { return err == nil && len(n.GPUs) == 2 })
	must.Eq(t, 300000, *node.GPUs[0].PowerMilliwatts)
}

func TestLibrary_simulatedTelemetry(t *testing.T) {
	s := newSimulated(t)
	s.set(t, "0", map[string]string{
		"power_mw": "123456", "power_limit_mw": "650000", "temperature": "71", "graphics_mhz": "1410", "memory_mhz": "2619",
		"gpu_utilisation": "37", "memory_utilisation": "21", "encoder_utilisation": "5", "decoder_utilisation": "6",
		"bar1_mib": "65536", "bar1_used_mib": "9",
	})
	s.Run(t, "fault", "ecc", "0", "corrected", "l1", "1")
	s.Run(t, "fault", "ecc", "0", "corrected", "l2", "2")
	s.Run(t, "fault", "ecc", "0", "corrected", "dram", "3")
	telemetry, err := s.library.Telemetry(t.Context(), hopper)
	must.NoError(t, err)
	must.Eq(t, &nvml.Telemetry{
		PowerMilliwatts: ptr[int64](123456), PowerLimitMilliwatts: ptr[int64](650000), TemperatureCelsius: ptr[int64](71),
		GPUPercent: ptr[int64](37), MemoryPercent: ptr[int64](21),
		EncoderPercent: ptr[int64](5), DecoderPercent: ptr[int64](6),
		UsedBytes: ptr[int64](500 << 20), MemoryBytes: ptr[int64](143771 << 20),
		BAR1UsedBytes: ptr[int64](9 << 20), BAR1Bytes: ptr[int64](64 << 30),
		Corrected: &nvml.CorrectedErrors{L1Cache: 1, L2Cache: 2, Memory: 3},
	}, telemetry)

	s.set(t, "1", map[string]string{"temperature": "unsupported", "gpu_utilisation": "unsupported", "ecc_mode": "0"})
	telemetry, err = s.library.Telemetry(t.Context(), turing)
	must.NoError(t, err)
	must.Nil(t, telemetry.TemperatureCelsius)
	must.Nil(t, telemetry.GPUPercent)
	must.Nil(t, telemetry.MemoryPercent)
	must.Nil(t, telemetry.Corrected)
	must.NotNil(t, telemetry.PowerMilliwatts)

	s.Run(t, "fault", "nvml-error", "1", "nvmlDeviceGetTemperature", "999")
	_, err = s.library.Telemetry(t.Context(), turing)
	must.ErrorIs(t, err, gonvml.ERROR_UNKNOWN)
	must.ErrorContains(t, err, "NVML could not read the temperature of the GPU "+turing)
	_, err = s.library.Telemetry(t.Context(), "GPU-of-nobody")
	must.ErrorContains(t, err, "NVML could not find the GPU GPU-of-nobody")
}

func TestLibrary_simulatedHealth(t *testing.T) {
	s := newSimulated(t)
	health := func(uuid string) *nvml.Health {
		t.Helper()
		health, err := s.library.Health(t.Context(), uuid)
		must.NoError(t, err)
		return health
	}
	none, idle := ptr[int64](0), ptr(nvml.ComputeDefault)
	must.Eq(t, &nvml.Health{
		Rows: &nvml.RemappedRows{BanksWithoutSpares: none}, Uncorrected: &nvml.UncorrectedErrors{Volatile: none, Aggregate: none},
		Recovery: ptr(nvml.RecoveryNone), ComputeMode: idle,
	}, health(hopper))
	must.Eq(t, &nvml.Health{
		Pages: &nvml.RetiredPages{}, Uncorrected: &nvml.UncorrectedErrors{Volatile: none, Aggregate: none},
		Recovery: ptr(nvml.RecoveryNone), ComputeMode: idle,
	}, health(turing))
	must.Eq(t, "", health(hopper).Problem())
	must.SliceEmpty(t, health(hopper).Warnings())

	s.set(t, "0", map[string]string{"rows_correctable": "1", "rows_uncorrectable": "2", "rows_pending": "1", "banks_none": "3"})
	s.Run(t, "fault", "ecc", "0", "uncorrected", "sram", "4")
	got := health(hopper)
	must.Eq(t, &nvml.RemappedRows{Correctable: 1, Uncorrectable: 2, Pending: true, BanksWithoutSpares: ptr[int64](3)}, got.Rows)
	must.Eq(t, &nvml.UncorrectedErrors{Volatile: ptr[int64](4), Aggregate: ptr[int64](4)}, got.Uncorrected)
	must.Eq(t, "", got.Problem())
	must.Eq(t, []string{"rows of its memory are remapped with the next reset of the GPU", "3 banks of its memory have no spare row left"},
		got.Warnings())
	must.NoError(t, s.library.Close(t.Context())) // a GPU that somebody has open is not reset
	s.Run(t, "reset", "0")
	got = health(hopper)
	must.Eq(t, &nvml.UncorrectedErrors{Volatile: ptr[int64](0), Aggregate: ptr[int64](4)}, got.Uncorrected)
	must.Len(t, 1, got.Warnings())
	s.set(t, "0", map[string]string{"rows_failed": "1"})
	must.Eq(t, "a row of its memory could not be remapped: have the GPU replaced", health(hopper).Problem())

	s.set(t, "1", map[string]string{"pages_correctable": "5", "pages_uncorrectable": "6", "pages_pending": "1"})
	got = health(turing)
	must.Eq(t, &nvml.RetiredPages{Correctable: 5, Uncorrectable: 6, Pending: true}, got.Pages)
	must.Eq(t, []string{"pages of its memory are retired with the next reset of the GPU"}, got.Warnings())
	s.Run(t, "fault", "recovery", "1", "1")
	must.Eq(t, "the driver asks for a reset of the GPU", health(turing).Problem())

	must.NoError(t, s.library.SetComputeMode(t.Context(), turing, nvml.ComputeExclusiveProcess))
	must.Eq(t, "Exclusive_Process", health(turing).ComputeMode.String())
	must.ErrorIs(t, s.library.SetComputeMode(t.Context(), turing, 77), gonvml.ERROR_INVALID_ARGUMENT)
	must.NoError(t, s.library.SetComputeMode(t.Context(), turing, nvml.ComputeDefault))
}

// Without the node for unified memory no CUDA program can start, whatever the GPUs say.
func TestLibrary_simulatedMissingNode(t *testing.T) {
	s := newSimulated(t)
	problem := func() string {
		t.Helper()
		health, err := s.library.Health(t.Context(), hopper)
		must.NoError(t, err)
		return health.Problem()
	}
	must.Eq(t, "", problem())
	node := filepath.Join(s.DriverRoot, "dev/nvidia-uvm")
	must.NoError(t, os.Rename(node, node+".away"))
	must.Eq(t, "the device node "+node+" is missing, so that no CUDA program can start: have the driver create it with "+
		"nvidia-modprobe -u -c 0, at each boot", problem())
	must.NoError(t, os.Rename(node+".away", node))
	must.Eq(t, "", problem())
}

func TestLibrary_simulatedEvents(t *testing.T) {
	s := newSimulated(t)
	s.read(t)
	s.listens(t, "0", hopper)
	s.Run(t, "fault", "xid", "1", "48")
	must.Eq(t, nvml.Event{UUID: turing, Xid: 48}, s.next(t))
	s.Run(t, "fault", "xid", "0", "95", "9", "0")
	event := s.next(t)
	must.Eq(t, nvml.Event{UUID: hopper, Xid: 95, Instance: &nvml.InstanceID{GPUInstance: 9}}, event)
	must.Eq(t, "Xid 95 (an uncorrected memory error that was not contained) in the MIG instance 9/0", event.String())
	s.Run(t, "fault", "ecc", "0", "uncorrected", "dram", "1") // no Xid
	s.Run(t, "fault", "recovery", "0", "2")
	must.Eq(t, nvml.Event{UUID: hopper, Xid: 154}, s.next(t))

	// Two that come at once both arrive, whoever is slow.
	s.Run(t, "fault", "xid", "0", "13")
	s.Run(t, "fault", "xid", "1", "31")
	must.Eq(t, 13, s.next(t).Xid)
	must.Eq(t, 31, s.next(t).Xid)

	// A GPU that fell off the bus doesn't tell its UUID any more.
	s.Run(t, "fault", "lost", "0", "on")
	must.Eq(t, nvml.Event{UUID: hopper, Xid: 79}, s.next(t))
	s.readUntil(t, "the GPU is lost", func(n *nvml.Node, err error) bool { return err == nil && len(n.Failed) == 1 })
	s.listens(t, "1", turing)
	s.Run(t, "fault", "lost", "0", "off")
	s.readUntil(t, "the GPU is back", func(n *nvml.Node, err error) bool { return err == nil && len(n.GPUs) == 2 })
	s.Run(t, "fault", "driver", "unload")
	s.Run(t, "fault", "driver", "load")
	s.readUntil(t, "the driver is back", func(_ *nvml.Node, err error) bool { return err == nil })
	s.listens(t, "0", hopper)

	// Nobody has to listen for the session to end.
	must.NoError(t, s.library.Close(t.Context()))
	s.read(t)
	s.listens(t, "1", turing)
}

// The channel closes with the context, session or not.
func TestLibrary_simulatedEventsEnd(t *testing.T) {
	s := newSimulated(t)
	for _, session := range []bool{false, true} {
		if session {
			s.read(t)
		}
		ctx, cancel := context.WithCancel(t.Context())
		events := s.library.Events(ctx)
		cancel()
		select {
		case _, open := <-events:
			must.False(t, open)
		case <-time.After(soon):
			t.Fatal("it goes on listening")
		}
	}
}

// A GPU that is taken out, and one that is put in, show without anybody's doing.
func TestLibrary_simulatedHotPlug(t *testing.T) {
	s := newSimulated(t)
	must.Len(t, 2, s.read(t).GPUs)
	s.Run(t, "fault", "removed", "0", "on")
	node := s.read(t)
	must.Len(t, 1, node.GPUs)
	must.Eq(t, hopper, node.Failed[0].UUID)
	must.ErrorIs(t, node.Failed[0].Err, gonvml.ERROR_GPU_IS_LOST)
	node = s.readUntil(t, "the GPU is gone", func(n *nvml.Node, err error) bool { return err == nil && len(n.Failed) == 0 })
	must.Len(t, 1, node.GPUs)
	must.Eq(t, turing, node.GPUs[0].UUID)
	must.Eq(t, 0, node.GPUs[0].Index)

	s.Run(t, "fault", "removed", "0", "off")
	node = s.readUntil(t, "the GPU is there", func(n *nvml.Node, err error) bool { return err == nil && len(n.GPUs) == 2 })
	must.Eq(t, hopper, node.GPUs[0].UUID)
	s.listens(t, "0", hopper)
}

func TestLibrary_simulatedDriverReload(t *testing.T) {
	s := newSimulated(t)
	s.read(t)
	s.Run(t, "fault", "driver", "unload")
	s.readUntil(t, "there is no driver", func(_ *nvml.Node, err error) bool {
		var noDriver *nvml.NoDriverError
		return errors.As(err, &noDriver)
	})
	s.Run(t, "fault", "mismatch", "on")
	s.Run(t, "fault", "driver", "load")
	_, err := s.library.Read(t.Context())
	must.ErrorIs(t, err, gonvml.ERROR_LIB_RM_VERSION_MISMATCH)
	must.ErrorContains(t, err, "the driver was replaced while this process had the old library loaded: restart it")
	s.Run(t, "fault", "mismatch", "off")
	must.Len(t, 2, s.read(t).GPUs)
}

// One GPU that doesn't answer is no other's matter.
func TestLibrary_simulatedErrorOfOneGPU(t *testing.T) {
	s := newSimulated(t)
	s.read(t)
	s.Run(t, "fault", "nvml-error", "0", "all", "16")
	node := s.read(t)
	must.Len(t, 1, node.GPUs)
	must.Eq(t, hopper, node.Failed[0].UUID)
	must.ErrorIs(t, node.Failed[0].Err, gonvml.ERROR_RESET_REQUIRED)
	_, err := s.library.Health(t.Context(), hopper)
	must.ErrorIs(t, err, gonvml.ERROR_RESET_REQUIRED)
	_, err = s.library.Health(t.Context(), turing)
	must.NoError(t, err)
	s.Run(t, "fault", "nvml-error", "0", "all", "0")
	s.readUntil(t, "the GPU answers", func(n *nvml.Node, err error) bool { return err == nil && len(n.GPUs) == 2 })
}

func TestLibrary_simulatedHangs(t *testing.T) {
	s := newSimulated(t)
	s.read(t)
	s.listens(t, "0", hopper)

	t.Run("a call", func(t *testing.T) {
		s.Run(t, "fault", "hang", "nvmlDeviceGetTemperature", "on")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.library.Telemetry(ctx, hopper)
		must.ErrorIs(t, err, context.DeadlineExceeded)
		must.ErrorContains(t, err, "NVML did not answer in time")
		_, err = s.library.Health(ctx, hopper)
		must.ErrorContains(t, err, "NVML is still busy with an earlier call about "+hopper)
		must.Len(t, 2, s.read(t).GPUs, must.Sprint("whatever does not ask for what hangs goes on"))
		_, err = s.library.Health(t.Context(), turing)
		must.NoError(t, err)
		must.ErrorContains(t, s.library.Close(t.Context()), "the session cannot end before")
		s.Run(t, "fault", "xid", "1", "94") // events come all the same
		must.Eq(t, nvml.Event{UUID: turing, Xid: 94}, s.next(t))
		s.Run(t, "fault", "hang", "nvmlDeviceGetTemperature", "off")
		_, err = s.library.Telemetry(t.Context(), hopper)
		must.NoError(t, err)
	})

	t.Run("the wait for events", func(t *testing.T) {
		s.Run(t, "fault", "hang", "nvmlEventSetWait_v2", "on")
		must.Eq(t, nvml.Event{}, s.noneFor(nvml.WaitGrace)) // a wait that is under way ends
		s.Run(t, "fault", "xid", "1", "13")
		must.Len(t, 2, s.read(t).GPUs)
		_, err := s.library.Health(t.Context(), hopper)
		must.NoError(t, err)
		// The session can't end, and continues, whatever there is to renew it for.
		must.ErrorContains(t, s.library.Close(t.Context()), "NVML still waits for events")
		s.Run(t, "fault", "nvml-error", "0", "all", "999")
		for range 2 {
			must.Len(t, 1, s.read(t).GPUs)
		}
		s.Run(t, "fault", "nvml-error", "0", "all", "0")
		must.Len(t, 2, s.read(t).GPUs)
		must.Eq(t, nvml.Event{}, s.noneFor(0))
		s.Run(t, "fault", "hang", "nvmlEventSetWait_v2", "off")
		must.Eq(t, nvml.Event{UUID: turing, Xid: 13}, s.next(t))
	})
}

// noneFor is the event that arrives within a while, none if it is as it should.
func (s *simulated) noneFor(while time.Duration) nvml.Event {
	select {
	case event := <-s.events:
		return event
	case <-time.After(while):
		return nvml.Event{}
	}
}
