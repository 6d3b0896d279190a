package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

// restartInterval is how often a new session with the driver is begun while it, or a GPU, does not answer. NVML notices a
// GPU's return only then; but beginning a session takes seconds on a node whose driver is not kept loaded, and may start a
// program that tries to load it.
const restartInterval = 5 * time.Second

// requiredSymbols are the functions that this package always calls. go-nvml binds them on first use: in a library without
// one of them, that call would end the process.
var requiredSymbols = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString",
	"nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber",
	"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates",
}

// Library is the NVML of one driver root. It may be used by many goroutines. Calls into the driver are made one at a time,
// except queries of single GPUs: see gpuCalls.
type Library struct {
	driverRoot string
	// injected is whether the library is a test's, which has no device nodes.
	injected bool
	load     func(path string) (gonvml.Interface, error)
	now      func() time.Time

	// callLock holds a token while a call is in the driver. It protects the fields up to listed. It is not a mutex because a
	// caller must be able to stop waiting for a call that never returns.
	callLock chan struct{}
	lib      gonvml.Interface
	started  bool
	// had is whether there was a session before.
	had     bool
	startAt time.Time
	restart bool
	// renew has the session restarted even if all GPUs answer.
	renew    bool
	startErr error
	uuids    map[int]string
	traits   map[string]Traits
	// listed are the GPUs that the kernel module listed when the session began.
	listed []string

	// waiting holds a token while NVML waits for events, and while the session ends or begins. It is taken after callLock.
	waiting chan struct{}
	// events receives the session's events; nil without a receiver.
	events      atomic.Pointer[eventSet]
	eventsState eventsState
	// begun receives a value when a session has begun.
	begun chan struct{}

	gpuCalls gpuCalls
}

// New returns the NVML of a driver root. The library is loaded when it is first needed; until it is found, each call
// searches again.
func New(driverRoot string) *Library {
	return &Library{
		driverRoot: driverRoot,
		load:       loadLibrary,
		now:        time.Now,
		callLock:   make(chan struct{}, 1),
		waiting:    make(chan struct{}, 1),
		begun:      make(chan struct{}, 1),
	}
}

// NewWith returns the NVML of a library that is loaded already, such as the mock of a test.
func NewWith(lib gonvml.Interface) *Library {
	l := New("/")
	l.lib, l.injected = lib, true
	return l
}

// Read implements Interface.
func (l *Library) Read(ctx context.Context) (*Node, error) {
	return call(ctx, l, func() (*Node, error) {
		if err := l.start(); err != nil {
			l.traits = nil
			return nil, err
		}
		node, err := l.read()
		if err != nil {
			l.restart, l.traits = true, nil
			return nil, err
		}
		l.keepTraits(node.GPUs)
		// A session knows only the GPUs that were present when it began.
		l.restart = len(node.Failed) > 0 || !slices.Equal(l.listed, l.listGPUs())
		return node, nil
	})
}

// Close implements Interface.
func (l *Library) Close(ctx context.Context) error {
	_, err := call(ctx, l, func() (struct{}, error) { return struct{}{}, l.stop() })
	return err
}

// call makes one call into the driver, and stops waiting for it when the context ends. A call that hangs keeps callLock, so
// that at most one goroutine hangs in the driver.
func call[T any](ctx context.Context, l *Library, fn func() (T, error)) (T, error) {
	var none T
	select {
	case l.callLock <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("NVML is still busy with an earlier call: %w", ctx.Err())
	}
	return wait(ctx, func() (T, error) {
		defer func() { <-l.callLock }()
		return fn()
	})
}

// wait waits for a call until the context ends. The call itself is not cancelled.
func wait[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := fn()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("NVML did not answer in time: %w", ctx.Err())
	}
}

// start makes sure that there is a session with the driver.
func (l *Library) start() error {
	if l.started && (l.restart || l.renew) && l.now().Sub(l.startAt) >= restartInterval {
		// The outcome of ending the old session does not matter to the new one.
		if err := l.stop(); errors.Is(err, errStillWaiting) || errors.Is(err, errCallRunning) {
			l.startAt = l.now() // the old one is kept for a while
		}
	}
	if l.started {
		return nil
	}
	if l.lib == nil {
		if err := l.findLibrary(); err != nil {
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
	l.started, l.had, l.restart, l.renew = true, true, false, false
	l.uuids = make(map[int]string)
	l.gpuCalls.clearSymbols()
	l.listed = l.listGPUs()
	select {
	case l.begun <- struct{}{}:
	default: // a value is waiting already
	}
	return nil
}

// has reports whether the library has all of these functions. It may be called only during a session.
func (l *Library) has(symbols ...string) bool {
	return l.gpuCalls.hasAll(symbols, func(symbol string) bool { return l.lib.Extensions().LookupSymbol(symbol) == nil })
}

// listGPUs returns the bus IDs of the GPUs that the kernel module lists in /proc; nil if there is no such list.
func (l *Library) listGPUs() []string {
	for _, root := range []string{l.driverRoot, "/"} {
		entries, err := os.ReadDir(filepath.Join(root, "proc/driver/nvidia/gpus"))
		if err != nil {
			continue // a driver root need not have a /proc
		}
		ids := make([]string, 0, len(entries))
		for _, entry := range entries {
			ids = append(ids, entry.Name())
		}
		return ids
	}
	return nil
}

// begin begins a session with the driver.
func (l *Library) begin() error {
	switch ret := l.lib.Init(); ret {
	case gonvml.SUCCESS:
		return nil
	case gonvml.ERROR_DRIVER_NOT_LOADED:
		return &NoDriverError{l.driverRoot, failure(
			"begin a session with the library of the driver root "+l.driverRoot+" (is the kernel module loaded?)", ret)}
	case gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return failure("begin a session: "+l.mismatch(), ret)
	default:
		return failure("begin a session", ret)
	}
}

// mismatch returns what to do if the library and the kernel module have different versions. A library stays loaded until
// the process ends.
func (l *Library) mismatch() string {
	if l.had {
		return "the driver was replaced while this process had the old library loaded: restart it (of the device plugin, " +
			"restart the Nomad agent; tasks go on running)"
	}
	return "the driver's library is of another version than the kernel module that is loaded, as after an update of the " +
		"driver: restart the node, or have nothing use the GPUs and load the module anew"
}

// stop ends the session with the driver, if there is one.
func (l *Library) stop() error {
	if !l.started {
		return nil
	}
	if err := l.gpuCalls.end(); err != nil {
		return err
	}
	resume, err := l.endEvents()
	if err != nil {
		return err
	}
	defer resume()
	l.started = false
	if ret := l.lib.Shutdown(); ret != gonvml.SUCCESS {
		return failure("end the session", ret)
	}
	return nil
}

// findLibrary loads the library from the driver root.
func (l *Library) findLibrary() error {
	path, err := driverroot.FindLibrary(l.driverRoot, driverroot.NVMLLibrary)
	if err != nil {
		return &NoDriverError{l.driverRoot, err}
	}
	lib, err := l.load(path)
	if err != nil {
		return err
	}
	l.lib = lib
	return nil
}

// loadLibrary loads the library permanently: the dynamic linker binds go-nvml's functions to it, so that it must never be
// unloaded.
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

// failure returns the error for a call of NVML that did not succeed.
func failure(attempt string, ret gonvml.Return) error {
	return fmt.Errorf("NVML could not %s: %w", attempt, ret)
}
