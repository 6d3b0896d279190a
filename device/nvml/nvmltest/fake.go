// Package nvmltest has replacements for NVML in tests: Fake, an nvml.Interface whose answers and errors a test sets, and
// Server, which completes go-nvml's mock servers below an nvml.Library.
package nvmltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tranche-gpu/tranche/device/nvml"
)

// Fake is an nvml.Interface with answers that a test sets. Its zero value is a node with a driver and no GPU.
type Fake struct {
	mu        sync.Mutex
	node      nvml.Node
	processes map[string][]nvml.Process
	err       error
	stuck     chan struct{}
	reads     int
	telemetry map[string]nvml.Telemetry
	busy      map[string]map[int]nvml.Busy
	health    map[string]nvml.Health
	compute   map[string]nvml.ComputeMode
	// limits are those of cgroups, by GPU and cgroup; nil for a driver that has none.
	limits    map[[2]string]uint64
	events    chan nvml.Event
	eventsErr error
}

var _ nvml.Interface = (*Fake)(nil)

// New returns a fake node with these GPUs.
func New(gpus ...nvml.GPU) *Fake {
	return &Fake{node: nvml.Node{DriverVersion: "570.124.06", CUDAVersion: "12.8", GPUs: gpus}}
}

// H200 is an NVIDIA H200 at an index, with a UUID and a PCI bus ID of its own.
func H200(index int) nvml.GPU {
	return nvml.GPU{
		Index:             index,
		UUID:              fmt.Sprintf("GPU-%08d-1111-2222-3333-444444444444", index),
		Name:              "NVIDIA H200",
		PCIBusID:          fmt.Sprintf("00000000:%02X:00.0", 0x18+index),
		Minor:             index,
		ComputeCapability: "9.0",
		MemoryBytes:       143771 << 20,
	}
}

// SetGPUs replaces the GPUs that answer.
func (f *Fake) SetGPUs(gpus ...nvml.GPU) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node.GPUs = gpus
}

// SetFailed replaces the GPUs that do not answer.
func (f *Fake) SetFailed(failed ...nvml.Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node.Failed = failed
}

// SetError makes every call fail, or succeed again with nil.
func (f *Fake) SetError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// SetProcesses sets the processes that compute on a GPU.
func (f *Fake) SetProcesses(uuid string, processes ...nvml.Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.processes == nil {
		f.processes = make(map[string][]nvml.Process)
	}
	f.processes[uuid] = processes
}

// Stick makes every call hang until its context ends or unstick is called.
func (f *Fake) Stick() (unstick func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stuck := make(chan struct{})
	f.stuck = stuck
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stuck = nil
		close(stuck)
	}
}

// Reads returns the number of calls of Read.
func (f *Fake) Reads() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// Read implements nvml.Interface.
func (f *Fake) Read(ctx context.Context) (*nvml.Node, error) {
	if err := f.enter(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.err != nil {
		return nil, f.err
	}
	node := f.node
	node.GPUs = slices.Clone(f.node.GPUs)
	node.Failed = slices.Clone(f.node.Failed)
	return &node, nil
}

// Processes implements nvml.Interface.
func (f *Fake) Processes(ctx context.Context, uuid string) ([]nvml.Process, error) {
	if err := f.enter(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.processes[uuid]), f.err
}

// SetTelemetry sets what a GPU measures.
func (f *Fake) SetTelemetry(uuid string, telemetry nvml.Telemetry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.telemetry == nil {
		f.telemetry = make(map[string]nvml.Telemetry)
	}
	f.telemetry[uuid] = telemetry
}

// SetProcessUtilization sets how busy a GPU is with each process, by process ID; nil is unknown.
func (f *Fake) SetProcessUtilization(uuid string, busy map[int]nvml.Busy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy == nil {
		f.busy = make(map[string]map[int]nvml.Busy)
	}
	f.busy[uuid] = busy
}

// ProcessUtilization implements nvml.Interface.
func (f *Fake) ProcessUtilization(ctx context.Context, uuid string, _ time.Time) (map[int]nvml.Busy, error) {
	if err := f.enter(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.busy[uuid]), f.err
}

// SetHealth sets the state of a GPU, except its compute mode.
func (f *Fake) SetHealth(uuid string, health nvml.Health) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.health == nil {
		f.health = make(map[string]nvml.Health)
	}
	f.health[uuid] = health
}

// Post sends an event to the receiver of Events, and blocks until it was received.
func (f *Fake) Post(ctx context.Context, event nvml.Event) error {
	select {
	case f.eventChannel() <- event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Fake) eventChannel() chan nvml.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events == nil {
		f.events = make(chan nvml.Event)
	}
	return f.events
}

// Telemetry implements nvml.Interface.
func (f *Fake) Telemetry(ctx context.Context, uuid string) (*nvml.Telemetry, error) {
	if err := f.enter(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	telemetry := f.telemetry[uuid]
	if !slices.ContainsFunc(f.node.GPUs, func(g nvml.GPU) bool { return g.UUID == uuid }) {
		return nil, cmp.Or(f.err, fmt.Errorf("there is no GPU %s", uuid))
	}
	return &telemetry, f.err
}

// Health implements nvml.Interface.
func (f *Fake) Health(ctx context.Context, uuid string) (*nvml.Health, error) {
	if err := f.enter(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	health := f.health[uuid]
	mode := f.compute[uuid]
	health.ComputeMode = &mode
	return &health, f.err
}

// SetComputeMode implements nvml.Interface.
func (f *Fake) SetComputeMode(ctx context.Context, uuid string, mode nvml.ComputeMode) error {
	if err := f.enter(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.compute == nil {
		f.compute = make(map[string]nvml.ComputeMode)
	}
	f.compute[uuid] = mode
	return f.err
}

// AllowMemoryLimits makes the driver one that limits the memory of cgroups.
func (f *Fake) AllowMemoryLimits() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits = make(map[[2]string]uint64)
}

// SetMemoryLimit implements nvml.Interface.
func (f *Fake) SetMemoryLimit(ctx context.Context, uuid, cgroup string, bytes uint64) error {
	if err := f.enter(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.limits == nil:
		return errors.New("NVML could not limit a cgroup: Not Supported")
	case bytes == nvml.NoMemoryLimit:
		delete(f.limits, [2]string{uuid, cgroup})
	default:
		f.limits[[2]string{uuid, cgroup}] = bytes
	}
	return f.err
}

// MemoryLimit implements nvml.Interface.
func (f *Fake) MemoryLimit(ctx context.Context, uuid, cgroup string) (limitBytes, usedBytes uint64, err error) {
	if err := f.enter(ctx); err != nil {
		return 0, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	limitBytes, found := f.limits[[2]string{uuid, cgroup}]
	if !found {
		return 0, 0, errors.New("NVML could not query a cgroup: Not Found")
	}
	return limitBytes, 0, f.err
}

// Events implements nvml.Interface.
func (f *Fake) Events(ctx context.Context) <-chan nvml.Event {
	posted, out := f.eventChannel(), make(chan nvml.Event)
	go func() {
		defer close(out)
		for {
			select {
			case event := <-posted:
				select {
				case out <- event:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// SetEventsError sets why the receiver of Events misses some.
func (f *Fake) SetEventsError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eventsErr = err
}

// EventsError implements nvml.Interface.
func (f *Fake) EventsError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.eventsErr
}

// Close implements nvml.Interface.
func (f *Fake) Close(context.Context) error { return nil }

func (f *Fake) enter(ctx context.Context) error {
	f.mu.Lock()
	stuck := f.stuck
	f.mu.Unlock()
	if stuck == nil {
		return nil
	}
	select {
	case <-stuck:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
