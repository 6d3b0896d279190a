package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/contextcost"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// fakeManager is a Manager without daemons.
type fakeManager struct {
	mu       sync.Mutex
	changed  chan struct{}
	running  map[string]bool
	owned    map[string]bool
	err      error // of Ensure
	clients  []int
	servers  []int
	released []string
	stopped  []string
	ensured  int
	// serverless has no server be started.
	serverless bool
	// v3 is whether daemons have namespaces; namespaces were assigned last.
	v3         bool
	namespaces []mps.Namespace
	assignErr  error
}

func newFakeManager(owned ...string) *fakeManager {
	k := &fakeManager{changed: make(chan struct{}, 1), running: make(map[string]bool), owned: make(map[string]bool)}
	for _, uuid := range owned {
		k.owned[uuid] = true
	}
	return k
}

func (k *fakeManager) Ensure(_ context.Context, uuid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ensured++
	if k.err != nil {
		return k.err
	}
	k.owned[uuid], k.running[uuid] = true, true
	return nil
}

func (k *fakeManager) Serve(_ context.Context, uuid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.serverless {
		return &mps.ServerError{GPUUUID: uuid, Reason: "it fell over"}
	}
	return nil
}

func (k *fakeManager) Assign(_ context.Context, _ string, namespaces []mps.Namespace) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.namespaces = namespaces
	return k.assignErr
}

func (k *fakeManager) Clients(context.Context, string) ([]int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.clients), nil
}

func (k *fakeManager) Status(uuid string) mps.Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running[uuid] {
		return mps.Status{Running: true, Namespaces: k.v3}
	}
	return mps.Status{Reason: "it fell over"}
}

func (k *fakeManager) Changed() <-chan struct{} { return k.changed }

func (k *fakeManager) Left() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.owned)), nil
}

func (k *fakeManager) Has(_ string, pid int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.servers, pid)
}

func (k *fakeManager) Owns(uuid string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.owned[uuid]
}

func (k *fakeManager) Release(_ context.Context, uuid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.clients) > 0 {
		return &mps.BusyError{GPUUUID: uuid, Clients: k.clients}
	}
	delete(k.owned, uuid)
	k.released = append(k.released, uuid)
	return nil
}

func (k *fakeManager) Stop(_ context.Context, uuid string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running[uuid] = false
	k.stopped = append(k.stopped, uuid)
	return nil
}

func (k *fakeManager) Close() {}

// set changes the state, and notifies.
func (k *fakeManager) set(change func()) {
	k.mu.Lock()
	change()
	k.mu.Unlock()
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (k *fakeManager) get(what func() any) any {
	k.mu.Lock()
	defer k.mu.Unlock()
	return what()
}

// newMPSPlugin is a plugin whose daemons are the fake's.
func newMPSPlugin(t *testing.T, gpus nvml.Interface, k *fakeManager, options map[string]any) *Plugin {
	t.Helper()
	all := map[string]any{"mode": "mps", "slice_memory": "20GiB"}
	maps.Copy(all, options)
	p := newPlugin(t, gpus, all)
	p.node.Load().daemons.Manager = k
	return p
}

func healthyIn(lines []string) int { return strings.Count(strings.Join(lines, ""), "+") }

func TestMPS(t *testing.T) {
	g := nvmltest.H200(0)
	k := newFakeManager()
	p := newMPSPlugin(t, nvmltest.New(g), k, neverByItself)
	stream := fingerprint(t, p)
	groups := next(t, stream).Devices
	must.Eq(t, []string{"slice NVIDIA H200 #0: +++++++"}, lines(groups))
	must.NoError(t, groups[0].Validate())
	must.Eq(t, structs.NewStringAttribute("mps"), groups[0].Attributes["isolation"])
	must.Eq(t, structs.NewStringAttribute("mps"), groups[0].Attributes["mode"])
	must.Eq(t, structs.NewIntAttribute(20<<10, "MiB"), groups[0].Attributes["slice_memory"])

	reservation, err := p.Reserve(sliceIDs(g, 0, 1, 2))
	must.NoError(t, err)
	must.Eq(t, "void", reservation.Envs["NVIDIA_VISIBLE_DEVICES"])
	made := claimsOf(t, p)[0]
	must.Eq(t, claim.ModeMPS, made.Mode)
	must.Eq(t, &claim.MPS{Percentage: 43}, made.MPS)
	must.Eq(t, uint64(60<<30), made.LimitBytes)
	must.Eq(t, 300*mebi, made.GPU.ContextBytes)

	// The daemon ends, and is started again.
	k.set(func() { k.running[g.UUID], k.err = false, &mps.DownError{GPUUUID: g.UUID, Reason: "it fell over"} })
	reasons := unhealthy(next(t, stream).Devices[0])
	must.MapLen(t, 7, reasons)
	for _, reason := range reasons {
		must.Eq(t, "the MPS control daemon does not run: it fell over", reason)
	}
	k.set(func() { k.running[g.UUID], k.err = true, nil })
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
}

// Without its daemon a GPU has nothing to offer, and a reservation can be tried again.
func TestMPS_daemonFails(t *testing.T) {
	g := nvmltest.H200(0)
	k := newFakeManager()
	k.err = &mps.DownError{GPUUUID: g.UUID, Reason: "it fell over"}
	p := newMPSPlugin(t, nvmltest.New(g), k, nil)
	_, err := p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, "it fell over")
	must.StrHasSuffix(t, "and the reservation can be retried", err.Error())
	must.Eq(t, codes.Aborted, status.Code(err))
	must.SliceEmpty(t, claimsOf(t, p))
	stream := fingerprint(t, p)
	must.MapLen(t, 7, unhealthy(next(t, stream).Devices[0]))
	k.set(func() { k.err = nil })
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
}

// onlyOnce is a cost that can be measured as long as nobody owns the GPU.
type onlyOnce struct {
	t        *testing.T
	k        *fakeManager
	uuid     string
	known    bool
	measured int
}

func (c *onlyOnce) Cost(context.Context, contextcost.GPU) (uint64, error) {
	must.False(c.t, c.k.Owns(c.uuid), must.Sprint("a context is made past the daemon"))
	c.measured++
	c.known = true
	return 200 * mebi, nil
}

func (c *onlyOnce) Known(contextcost.GPU) (uint64, bool) { return 200 * mebi, c.known }

// What a context costs is measured before nobody but the daemon can make one.
func TestMPS_measuresFirst(t *testing.T) {
	g := nvmltest.H200(0)
	for name, tc := range map[string]struct {
		known, owned bool
		measured     int
		want         uint64
	}{
		"at first":                      {false, false, 1, 200 * mebi},
		"after a restart":               {true, true, 0, 200 * mebi},
		"after a restart, not known":    {false, true, 0, contextcost.DefaultBytes},
		"at first, by an earlier model": {true, false, 0, 200 * mebi},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeManager()
			k.owned[g.UUID] = tc.owned
			p := newMPSPlugin(t, nvmltest.New(g), k, nil)
			cost := &onlyOnce{t: t, k: k, uuid: g.UUID, known: tc.known}
			p.node.Load().daemons.Costs = cost
			_, err := p.Reserve(sliceIDs(g, 0))
			must.NoError(t, err)
			must.Eq(t, tc.want, claimsOf(t, p)[0].GPU.ContextBytes)
			must.Eq(t, tc.measured, cost.measured)
			must.MapEmpty(t, unhealthy(next(t, fingerprint(t, p)).Devices[0]))
			must.Eq(t, tc.measured, cost.measured)
		})
	}
}

// A GPU goes behind its daemon when nobody uses it past that.
func TestMPS_waitsForUnmanaged(t *testing.T) {
	g := nvmltest.H200(0)
	fake, k := nvmltest.New(g), newFakeManager()
	fake.SetProcesses(g.UUID, nvml.Process{PID: 4711})
	p := newMPSPlugin(t, fake, k, nil)
	stream := fingerprint(t, p)
	for _, reason := range unhealthy(next(t, stream).Devices[0]) {
		must.StrContains(t, reason, "until process 4711 is gone")
	}
	_, err := p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, "until process 4711 is gone")
	must.Eq(t, codes.Aborted, status.Code(err))
	must.False(t, k.Owns(g.UUID))
	fake.SetProcesses(g.UUID, nvml.Process{PID: 4712, OnlyRenders: true})
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
}

// Behind it, those who compute are its server and clients, and what is in a container with a claim. Whoever else does keeps
// the tasks' programs from the GPU, or computes beside them without a limit: that is said, and nothing is given out.
func TestMPS_Bypassed(t *testing.T) {
	g := nvmltest.H200(0)
	fake, k := nvmltest.New(g), newFakeManager()
	p := newMPSPlugin(t, fake, k, nil)
	stream := fingerprint(t, p)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	server, _ := startInit(t)
	client, _ := startInit(t)
	contained, _ := startInit(t)
	k.set(func() { k.servers, k.clients = []int{server}, []int{client} })
	fake.SetProcesses(g.UUID, nvml.Process{PID: server}, nvml.Process{PID: client}, nvml.Process{PID: contained})
	reasons := unhealthy(next(t, stream).Devices[0])
	must.MapLen(t, 7, reasons)
	for _, reason := range reasons {
		must.Eq(t, fmt.Sprintf("the GPU NVIDIA H200 #0 (%s) is used without its MPS control daemon, by process %d: end it",
			g.UUID, contained), reason)
	}
	_, err := p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, fmt.Sprint("by process ", contained))
	must.Eq(t, codes.Aborted, status.Code(err))

	fake.SetProcesses(g.UUID, nvml.Process{PID: server}, nvml.Process{PID: client}, nvml.Process{PID: contained, OnlyRenders: true})
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	_, err = p.Reserve(sliceIDs(g, 0))
	must.NoError(t, err)
	made := claimsOf(t, p)[0]
	must.NoError(t, p.node.Load().ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: contained}))
	fake.SetProcesses(g.UUID, nvml.Process{PID: server}, nvml.Process{PID: client}, nvml.Process{PID: contained})
	_, err = p.Reserve(sliceIDs(g, 1))
	must.NoError(t, err, must.Sprint("a client may be known to the daemon by another number"))

	k.set(func() { k.serverless = true })
	_, err = p.Reserve(sliceIDs(g, 2))
	must.ErrorContains(t, err, fmt.Sprintf("by processes %d, %d: end them", client, contained))
	fake.SetProcesses(g.UUID)
	_, err = p.Reserve(sliceIDs(g, 2))
	must.ErrorContains(t, err, "cannot start a server: it fell over")
}

// From slices to MPS and back: what a living task has stays as it is.
func TestMPS_change(t *testing.T) {
	g := nvmltest.H200(0)
	options := testOptions(t, map[string]any{"slice_memory": "20GiB"})
	reserved := func(p *Plugin) (string, func()) {
		_, err := p.Reserve(sliceIDs(g, 0))
		must.NoError(t, err)
		made := claimsOf(t, p)[0]
		pid, end := startInit(t)
		must.NoError(t, p.node.Load().ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: pid}))
		return made.ID, end
	}
	// The returned function expects the GPU to be healthy, and ends the plugin.
	waiting := func(p *Plugin, id, mode string) (check func()) {
		ctx, cancel := contextWithCancel(t)
		stream, err := p.Fingerprint(ctx)
		must.NoError(t, err)
		t.Cleanup(func() { drain(stream) })
		for _, reason := range unhealthy(next(t, stream).Devices[0]) {
			must.StrHasPrefix(t, "waits for claim "+id+", whose GPU is in mode "+mode, reason)
		}
		_, err = p.Reserve(sliceIDs(g, 0))
		must.ErrorContains(t, err, id)
		must.Eq(t, codes.Aborted, status.Code(err))
		return func() {
			for healthyIn(lines(next(t, stream).Devices)) != 7 { // what it waits for may change before
			}
			cancel()
			drain(stream)
		}
	}
	k := newFakeManager()
	first := newPlugin(t, nvmltest.New(g), options)
	first.node.Load().daemons.Manager = k
	id, end := reserved(first)

	options["mode"] = "mps"
	second := newMPSPlugin(t, nvmltest.New(g), k, options)
	healthy := waiting(second, id, "slice")
	must.False(t, k.Owns(g.UUID), must.Sprint("the task's next process would find no GPU"))
	end()
	healthy()
	must.True(t, k.Owns(g.UUID))
	id, end = reserved(second)

	options["mode"] = "slice"
	third := newPlugin(t, nvmltest.New(g), options)
	third.node.Load().daemons.Manager = k
	healthy = waiting(third, id, "mps")
	must.True(t, k.Owns(g.UUID))
	end()
	healthy()
	must.False(t, k.Owns(g.UUID))
	must.Eq(t, []string{g.UUID}, k.released)
}

// A daemon with clients of nobody's knowledge, or that cannot be ended, keeps its GPU.
func TestMPS_leavesLate(t *testing.T) {
	g := nvmltest.H200(0)
	k := newFakeManager(g.UUID)
	k.clients = []int{77}
	p := newMPSPlugin(t, nvmltest.New(g), k, map[string]any{"mode": "slice"})
	_, err := p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, "waits for the end of the MPS control daemon")
	must.Eq(t, codes.Aborted, status.Code(err))
	stream := fingerprint(t, p)
	for _, reason := range unhealthy(next(t, stream).Devices[0]) {
		must.StrContains(t, reason, "waits for processes that compute through the MPS control daemon")
	}
	k.set(func() { k.clients = nil })
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	_, err = p.Reserve(sliceIDs(g, 0))
	must.NoError(t, err)
}

// One that is not for Nomad any more is given back, too.
func TestMPS_ignored(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	k := newFakeManager(a.UUID, b.UUID)
	p := newMPSPlugin(t, nvmltest.New(a, b), k, map[string]any{"ignored_gpu_ids": []string{a.UUID}})
	next(t, fingerprint(t, p))
	must.Eq(t, []string{a.UUID}, k.get(func() any { return slices.Clone(k.released) }).([]string))
	must.True(t, k.Owns(b.UUID))
}

// A daemon ends when its GPU is gone, not when the driver is merely slow, and is back with it.
func TestMPS_gone(t *testing.T) {
	g := nvmltest.H200(0)
	fake, k := nvmltest.New(g), newFakeManager()
	p := newMPSPlugin(t, fake, k, nil)
	stream := fingerprint(t, p)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	fake.SetError(errors.New("it takes long"))
	must.MapLen(t, 7, unhealthy(next(t, stream).Devices[0]))
	must.True(t, k.Status(g.UUID).Running)
	fake.SetError(&nvml.NoDriverError{Err: errors.New("not loaded")})
	must.MapLen(t, 7, unhealthy(next(t, stream).Devices[0]))
	waitForEnd := func() {
		ended := func() bool { return !k.Status(g.UUID).Running }
		must.Wait(t, wait.InitialSuccess(wait.BoolFunc(ended), wait.Timeout(patience), wait.Gap(time.Millisecond)))
	}
	waitForEnd()
	fake.SetError(nil)
	for len(unhealthy(next(t, stream).Devices[0])) != 0 { // the reason changes when the driver is back before the daemon
	}
	must.True(t, k.Status(g.UUID).Running)
	fake.SetGPUs()
	must.MapLen(t, 7, unhealthy(next(t, stream).Devices[0]))
	waitForEnd()
}

func TestMPS_impossible(t *testing.T) {
	pascal, cut := nvmltest.H200(0), nvmltest.H200(0)
	pascal.Name, pascal.ComputeCapability = "Tesla P100-PCIE-16GB", "6.0"
	cut.MIG.Capable, cut.MIG.Enabled = true, true
	for name, tc := range map[string]struct {
		gpu     nvml.GPU
		options map[string]any
		want    []string
	}{
		"too old": {pascal, map[string]any{"mode": "mps"}, []string{"mode: the GPU 0, Tesla P100", `cannot be in mode "mps"`, "6.0"}},
		"cut up": {
			cut, map[string]any{"gpu": gpuBlocks(map[string]any{"gpu": "index:0", "mode": "mps"})},
			[]string{`gpu "index:0": the GPU 0, NVIDIA H200`, "MIG is on"},
		},
		"no room for a socket's name": {
			nvmltest.H200(0), map[string]any{"mode": "mps", "run_dir": "/run/" + strings.Repeat("x", 34)},
			[]string{"mode: the GPU 0, NVIDIA H200", "longer than the 107 bytes that the kernel allows: choose a shorter run_dir"},
		},
		"no program": {nvmltest.H200(0), map[string]any{"mode": "mps"}, []string{"no nvidia-cuda-mps-control in the driver root"}},
	} {
		t.Run(name, func(t *testing.T) {
			options := testOptions(t, tc.options)
			p := newPlugin(t, nvmltest.New(tc.gpu), options)
			err := p.SetConfig(pluginConfig(t, options))
			must.Error(t, err)
			for _, want := range tc.want {
				must.StrContains(t, err.Error(), want)
			}
		})
	}
	// What turns out later makes them unhealthy.
	k := newFakeManager()
	p := newMPSPlugin(t, nvmltest.New(pascal), k, nil)
	for _, reason := range unhealthy(next(t, fingerprint(t, p)).Devices[0]) {
		must.StrContains(t, reason, "compute capability is 6.0")
	}
	must.Eq(t, 0, k.ensured)
}
