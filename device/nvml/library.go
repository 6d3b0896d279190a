package nvml

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"tranche.dev/tranche/runtime/driverroot"
)

// restartInterval is how often a session with the driver is begun anew while it,
// or a GPU, doesn't answer. NVML notices a GPU's return only then; but beginning
// takes seconds on a node whose driver isn't kept loaded, and may start a
// program that tries to load it.
const restartInterval = 5 * time.Second

// requiredSymbols are what this package calls and go-nvml binds on first use: a
// library without one of them would end the process at that call.
var requiredSymbols = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString",
	"nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber",
	"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
}

// Library is the NVML of one driver root. It may be used by many goroutines;
// calls into the driver are made one at a time.
type Library struct {
	driverRoot string
	load       func(path string) (gonvml.Interface, error)
	now        func() time.Time

	// turn holds a token while a call is in the driver. What follows belongs to
	// the holder. It is no mutex because a caller must be able to give up
	// waiting for a call that never returns.
	turn     chan struct{}
	lib      gonvml.Interface
	started  bool
	startAt  time.Time
	restart  bool
	startErr error
	uuids    map[int]string
	hasV2Mem bool
	// hasMIG and hasProfileNames are whether the driver is new enough for them.
	hasMIG, hasProfileNames bool
}

// New returns the NVML of a driver root. The library is looked for when it is
// first needed, and again until it is there.
func New(driverRoot string) *Library {
	return &Library{
		driverRoot: driverRoot,
		load:       loadLibrary,
		now:        time.Now,
		turn:       make(chan struct{}, 1),
	}
}

// Read implements Interface.
func (l *Library) Read(ctx context.Context) (*Node, error) {
	return call(ctx, l, func() (*Node, error) {
		if err := l.start(); err != nil {
			return nil, err
		}
		node, err := l.read()
		l.restart = err != nil || len(node.Failed) > 0
		return node, err
	})
}

// Processes implements Interface.
func (l *Library) Processes(ctx context.Context, uuid string) ([]Process, error) {
	return call(ctx, l, func() ([]Process, error) {
		if err := l.start(); err != nil {
			return nil, err
		}
		device, ret := l.lib.DeviceGetHandleByUUID(uuid)
		if ret != gonvml.SUCCESS {
			return nil, failure("find the GPU "+uuid, ret)
		}
		infos, ret := device.GetComputeRunningProcesses()
		if ret != gonvml.SUCCESS {
			return nil, failure("list the processes of the GPU "+uuid, ret)
		}
		processes := make([]Process, 0, len(infos))
		for _, info := range infos {
			const notAvailable = ^uint64(0)
			known := info.UsedGpuMemory != notAvailable
			process := Process{PID: int(info.Pid), UsedKnown: known}
			if known {
				process.UsedBytes = info.UsedGpuMemory
			}
			processes = append(processes, process)
		}
		return processes, nil
	})
}

// Close implements Interface.
func (l *Library) Close(ctx context.Context) error {
	_, err := call(ctx, l, func() (struct{}, error) { return struct{}{}, l.stop() })
	return err
}

// call makes one call into the driver, and stops waiting for it when the
// context ends. A call that is stuck keeps its turn, so that no more than one
// goroutine ever hangs in the driver.
func call[T any](ctx context.Context, l *Library, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("NVML is still busy with an earlier call: %w", ctx.Err())
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-l.turn }()
		value, err := fn()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, fmt.Errorf("NVML did not answer in time: %w", ctx.Err())
	}
}

// start makes sure that there is a session with the driver.
func (l *Library) start() error {
	if l.started && l.restart && l.now().Sub(l.startAt) >= restartInterval {
		// Whether the old session ended well doesn't matter to the new one.
		_ = l.stop()
	}
	if l.started {
		return nil
	}
	if l.lib == nil {
		if err := l.find(); err != nil {
			return err
		}
	}
	if l.startErr != nil && l.now().Sub(l.startAt) < restartInterval {
		return l.startErr
	}
	l.startErr, l.startAt = l.begin(), l.now()
	if l.startErr != nil {
		return l.startErr
	}
	l.started, l.restart = true, false
	l.uuids = make(map[int]string)
	return nil
}

// begin asks the driver for a session.
func (l *Library) begin() error {
	switch ret := l.lib.Init(); ret {
	case gonvml.SUCCESS:
		return nil
	case gonvml.ERROR_DRIVER_NOT_LOADED:
		return &NoDriverError{l.driverRoot, failure(
			"begin a session with the library of the driver root "+l.driverRoot+" (is the kernel module loaded?)", ret)}
	case gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return failure("begin a session: the driver was replaced while this process had the old library loaded, restart it", ret)
	default:
		return failure("begin a session", ret)
	}
}

// stop ends the session with the driver.
func (l *Library) stop() error {
	if !l.started {
		return nil
	}
	l.started = false
	if ret := l.lib.Shutdown(); ret != gonvml.SUCCESS {
		return failure("end the session", ret)
	}
	return nil
}

// find loads the library from the driver root.
func (l *Library) find() error {
	path, err := driverroot.FindLibrary(l.driverRoot, driverroot.NVMLLibrary)
	if err != nil {
		return &NoDriverError{l.driverRoot, err}
	}
	lib, err := l.load(path)
	if err != nil {
		return err
	}
	l.lib = lib
	has := func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	l.hasV2Mem = has("nvmlDeviceGetMemoryInfo_v2")
	l.hasProfileNames = has(profileNames)
	l.hasMIG = !slices.ContainsFunc(migSymbols, func(symbol string) bool { return !has(symbol) })
	return nil
}

// loadLibrary opens the library for good: go-nvml's functions are bound to it
// by the dynamic linker, so that it must never be unloaded.
func loadLibrary(path string) (gonvml.Interface, error) {
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL|dl.RTLD_NODELETE)
	if err := library.Open(); err != nil {
		return nil, fmt.Errorf("load NVML: %w", err)
	}
	for _, symbol := range requiredSymbols {
		if err := library.Lookup(symbol); err != nil {
			return nil, fmt.Errorf("load NVML from %s: the driver is too old or broken: %w", path, err)
		}
	}
	return gonvml.New(gonvml.WithLibraryPath(path)), nil
}

// failure words an answer of NVML other than success.
func failure(attempt string, ret gonvml.Return) error {
	return fmt.Errorf("NVML could not %s: %w", attempt, ret)
}
