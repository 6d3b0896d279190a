package device

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// sickNode is a plugin with one GPU, whose clock the test moves.
type sickNode struct {
	gpu    nvml.GPU
	fake   *nvmltest.Fake
	stream <-chan *ndevice.FingerprintResponse
	later  *atomic.Int64
}

// newSickNode is a node whose GPU reports recovery actions from the start, if one is given.
func newSickNode(t *testing.T, actions ...nvml.RecoveryAction) *sickNode {
	t.Helper()
	n := &sickNode{gpu: nvmltest.H200(0), later: new(atomic.Int64)}
	n.fake = nvmltest.New(n.gpu)
	for _, action := range actions {
		n.recovery(action)
	}
	p := newPlugin(t, n.fake, nil)
	p.node.Load().clock.Now = func() time.Time { return time.Now().Add(time.Duration(n.later.Load())) }
	n.stream = fingerprint(t, p)
	must.Eq(t, "", n.next(t))
	return n
}

// next is why the GPU's devices are unhealthy in the next message; empty if they are not.
func (n *sickNode) next(t *testing.T) string {
	t.Helper()
	devices := next(t, n.stream).Devices[0].Devices
	for _, d := range devices {
		must.Eq(t, devices[0].HealthDesc, d.HealthDesc)
		must.Eq(t, d.HealthDesc == "", d.Healthy)
	}
	return devices[0].HealthDesc
}

func (n *sickNode) recovery(action nvml.RecoveryAction) {
	n.fake.SetHealth(n.gpu.UUID, nvml.Health{Recovery: &action})
}

// An error that takes a reset makes the GPU unhealthy, until the driver says that it has recovered.
func TestHealth_Xid(t *testing.T) {
	n := newSickNode(t, nvml.RecoveryNone)
	must.NoError(t, n.fake.Post(t.Context(), nvml.Event{UUID: n.gpu.UUID, Xid: 31})) // a program's fault
	must.NoError(t, n.fake.Post(t.Context(), nvml.Event{UUID: n.gpu.UUID, Xid: 119}))
	must.StrContains(t, n.next(t), "Xid 119: ")

	n.recovery(nvml.RecoveryReset)
	must.StrContains(t, n.next(t), "a reset of the GPU")
	n.later.Store(int64(time.Minute))
	n.recovery(nvml.RecoveryNone)
	must.Eq(t, "", n.next(t))
}

// An error of which the driver does not say the GPU may be any GPU's.
func TestHealth_XidOfAnyGPU(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	fake := nvmltest.New(a, b)
	p := newPlugin(t, fake, neverByItself)
	stream := fingerprint(t, p)
	next(t, stream)
	must.NoError(t, fake.Post(t.Context(), nvml.Event{Xid: 79}))
	for _, group := range next(t, stream).Devices {
		must.StrContains(t, group.Devices[0].HealthDesc, "Xid 79: the GPU fell off the bus (the driver does not say on which GPU)")
	}
	must.MapLen(t, 2, unhealthyOf(t, p))
}

// A compute mode in which the tasks of a GPU cannot compute makes it unhealthy, until an operator changes it.
func TestHealth_ComputeMode(t *testing.T) {
	mig := []any{map[string]any{"profiles": []any{"3g.71gb"}}}
	shared := []any{map[string]any{"profiles": []any{"3g.71gb"}, "mode": "slice"}}
	for name, tc := range map[string]struct {
		options    map[string]any
		exclusive  bool
		prohibited bool
	}{
		"slice":      {nil, true, true},
		"timeslice":  {map[string]any{"mode": "timeslice", "replicas": 2}, true, true},
		"exclusive":  {map[string]any{"mode": "exclusive"}, false, true},
		"mig":        {map[string]any{"mode": "mig", "mig": mig}, false, true},
		"mig shared": {map[string]any{"mode": "mig", "mig": shared}, true, true},
		"mps":        {map[string]any{"mode": "mps", "slice_memory": "20GiB"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := nvmltest.H200(0)
			fake := nvmltest.New(g)
			p := newPlugin(t, fake, tc.options)
			n := p.node.Load()
			n.daemons.Manager = newFakeManager()
			condition := func(mode nvml.ComputeMode) string {
				t.Helper()
				must.NoError(t, fake.SetComputeMode(t.Context(), g.UUID, mode))
				return n.health.conditions(t.Context(), []nvml.GPU{g})[g.UUID]
			}
			for mode, unusable := range map[nvml.ComputeMode]bool{
				nvml.ComputeDefault: false, nvml.ComputeExclusiveProcess: tc.exclusive, nvml.ComputeProhibited: tc.prohibited,
			} {
				want := ""
				if unusable {
					want = "its compute mode is " + mode.String() + ", so that "
				}
				got := condition(mode)
				must.StrHasPrefix(t, want, got)
				must.Eq(t, want == "", got == "", must.Sprint(got))
			}
			n.daemons.Manager = newFakeManager(g.UUID)
			must.Eq(t, "", condition(nvml.ComputeExclusiveProcess), must.Sprint("an MPS control daemon has set it"))
		})
	}
}

// On the simulated GPU.
func TestHealth_ComputeModeSimulated(t *testing.T) { simtest.InProcess(t, testComputeModeSimulated) }

func testComputeModeSimulated(t *testing.T) {
	node := simtest.H200x2(t)
	library := nvml.New(node.DriverRoot)
	p := newPlugin(t, library, map[string]any{"driver_root": node.DriverRoot})
	stream := fingerprint(t, p)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	must.NoError(t, library.SetComputeMode(t.Context(), simtest.H200UUID0, nvml.ComputeExclusiveProcess))
	p.node.Load().wake()
	for _, reason := range unhealthy(next(t, stream).Devices[0]) {
		must.Eq(t, "its compute mode is Exclusive_Process, so that only one program at a time can compute on it: "+
			"nvidia-smi -i 0 -c DEFAULT", reason)
	}
	must.MapLen(t, 1, unhealthyOf(t, p))
	must.NoError(t, library.SetComputeMode(t.Context(), simtest.H200UUID0, nvml.ComputeDefault))
	p.node.Load().wake()
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
}

// A plugin that misses errors of GPUs says so, to others as well, until it receives them again.
func TestHealth_EventsMissed(t *testing.T) {
	fake := nvmltest.New(nvmltest.H200(0))
	p := newPlugin(t, fake, neverByItself)
	clock := moveByHand(p)
	var log bytes.Buffer
	n := p.node.Load()
	n.health.logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	missed := func() *health.Condition {
		t.Helper()
		n.update(t.Context())
		report, err := health.Read(n.runDir)
		must.NoError(t, err)
		return report.Events
	}
	must.Nil(t, missed())
	must.Eq(t, "", log.String())
	fake.SetEventsError(errors.New("NVML could not wait for events: Unknown Error"))
	first := missed()
	must.Eq(t, "NVML could not wait for events: Unknown Error", first.Problem)
	clock.later.Add(int64(time.Hour))
	must.Eq(t, first, missed(), must.Sprint("since the first moment"))
	must.Eq(t, 1, strings.Count(log.String(), "cannot receive the Xid errors of GPUs"))
	must.MapEmpty(t, unhealthyOf(t, p))
	fake.SetEventsError(nil)
	must.Nil(t, missed())
	must.Nil(t, missed())
	must.Eq(t, 1, strings.Count(log.String(), "are received again"))
}

// With drivers that do not report recovery, a GPU that was absent is taken to have been reset.
func TestHealth_XidOfAnOldDriver(t *testing.T) {
	n := newSickNode(t)
	must.NoError(t, n.fake.Post(t.Context(), nvml.Event{UUID: n.gpu.UUID, Xid: 79}))
	must.StrContains(t, n.next(t), "and then the Nomad agent")
	n.later.Store(int64(time.Hour))
	n.fake.SetError(&nvml.NoDriverError{Err: errors.New("the module is not loaded")})
	must.StrContains(t, n.next(t), "the module is not loaded")
	n.fake.SetError(nil)
	must.Eq(t, "", n.next(t))
}

// A driver that is merely slow does not make a GPU fit again.
func TestHealth_XidAndASlowDriver(t *testing.T) {
	n := newSickNode(t)
	must.NoError(t, n.fake.Post(t.Context(), nvml.Event{UUID: n.gpu.UUID, Xid: 79}))
	must.StrContains(t, n.next(t), "Xid 79")
	n.fake.SetError(errors.New("NVML did not answer in time"))
	must.StrContains(t, n.next(t), "in time")
	n.fake.SetError(nil)
	must.StrContains(t, n.next(t), "Xid 79")
}

func TestHealth_RemappedRows(t *testing.T) {
	n := newSickNode(t)
	n.fake.SetHealth(n.gpu.UUID, nvml.Health{Rows: &nvml.RemappedRows{Failed: true}})
	must.StrContains(t, n.next(t), "could not be remapped: have the GPU replaced")
	n.fake.SetHealth(n.gpu.UUID, nvml.Health{Rows: &nvml.RemappedRows{Pending: true}})
	must.Eq(t, "", n.next(t), must.Sprint("rows that wait for a reset are kept from processes by the driver"))
}

// A GPU that MIG has cut up can't be used as a whole.
func TestHealth_MIGTurnedOnByOthers(t *testing.T) {
	n := newSickNode(t)
	cut := n.gpu
	cut.MIG = nvml.MIG{Capable: true, Enabled: true}
	n.fake.SetGPUs(cut)
	must.StrContains(t, n.next(t), "MIG is on")
	n.fake.SetGPUs(n.gpu)
	must.Eq(t, "", n.next(t))
}
