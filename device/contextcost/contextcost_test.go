package contextcost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

func TestMain(m *testing.M) {
	ChildMain()
	os.Exit(m.Run())
}

func TestMeasure(t *testing.T) {
	node := simtest.H200x2(t)
	for _, uuid := range []string{simtest.H200UUID0, simtest.H200UUID1} {
		cost, err := Measure(t.Context(), node.DriverRoot, uuid)
		must.NoError(t, err)
		must.Eq(t, simtest.ContextBytes, cost)
		must.Eq(t, 0, node.UsedBytes(t, uuid), must.Sprint("the measurement left memory taken"))
	}
}

// What would put another library in front of the driver's, or hide the GPU, is
// kept from the child.
func TestMeasure_environment(t *testing.T) {
	node := simtest.H200x2(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	t.Setenv("LD_PRELOAD", "/nonexistent/libcuda.so.1")
	cost, err := Measure(t.Context(), node.DriverRoot, simtest.H200UUID1)
	must.NoError(t, err)
	must.Eq(t, simtest.ContextBytes, cost)
}

func TestMeasure_unknownGPU(t *testing.T) {
	node := simtest.H200x2(t)
	const uuid = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e000000ff"
	_, err := Measure(t.Context(), node.DriverRoot, uuid)
	must.EqError(t, err, "measure a CUDA context on "+uuid+": exit status 1: NVML does not list the GPU "+uuid)
}

func TestMeasure_noDriver(t *testing.T) {
	root := t.TempDir()
	_, err := Measure(t.Context(), root, simtest.H200UUID0)
	must.ErrorContains(t, err, "measure a CUDA context on "+simtest.H200UUID0+": exit status 1: "+
		"no NVIDIA driver: no libnvidia-ml.so.1 in the driver root "+root)
}

func TestMeasure_mainWithoutChild(t *testing.T) {
	childReady = false
	defer func() { childReady = true }()
	_, err := Measure(t.Context(), "/", simtest.H200UUID0)
	must.EqError(t, err, "measure a CUDA context: main has to call contextcost.ChildMain first")
}

func TestMeasure_cancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Measure(ctx, "/", simtest.H200UUID0)
	must.ErrorIs(t, err, context.Canceled)
}

// Where NVML doesn't list the process, the change of the GPU's used memory
// tells, unless somebody else's allocations are mixed into it.
func TestMeasure_difference(t *testing.T) {
	const known, unknown = true, false
	own, other := os.Getpid(), os.Getpid()+1
	cases := []struct {
		name          string
		processes     []nvml.Process
		before, after uint64 // MiB
		want          *measurement
		err           string
	}{
		{
			name:      "listed, whatever others do",
			processes: []nvml.Process{{PID: other, UsedBytes: 7, UsedKnown: known}, {PID: own, UsedBytes: 300, UsedKnown: known}},
			before:    1000, after: 9000, want: &measurement{300, "process"},
		},
		{
			name: "not listed", processes: []nvml.Process{{PID: other, UsedBytes: 7, UsedKnown: known}},
			before: 1000, after: 1310, want: &measurement{310 << 20, "difference"},
		},
		{
			name: "listed without its memory", processes: []nvml.Process{{PID: own, UsedKnown: unknown}},
			before: 1000, after: 1310, want: &measurement{310 << 20, "difference"},
		},
		{
			name: "nothing changed", before: 1000, after: 1000,
			err: "NVML does not list this process, and the GPU's used memory went from 1048576000 to 1048576000 bytes, which can't be one context",
		},
		{
			name: "somebody freed meanwhile", before: 1000, after: 900,
			err: "NVML does not list this process, and the GPU's used memory went from 1048576000 to 943718400 bytes, which can't be one context",
		},
		{
			name: "somebody allocated meanwhile", before: 1000, after: 9000,
			err: "NVML does not list this process, and the GPU's used memory went from 1048576000 to 9437184000 bytes, which can't be one context",
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			gpu := nvmltest.H200(0)
			gpu.UsedBytes = tc.before << 20
			fake := nvmltest.New(gpu)
			fake.SetProcesses(gpu.UUID, tc.processes...)
			got, err := measure(t.Context(), fake, gpu.UUID, func() error {
				gpu.UsedBytes = tc.after << 20
				fake.SetGPUs(gpu)
				return nil
			})
			if tc.err != "" {
				must.EqError(t, err, tc.err)
				return
			}
			must.NoError(t, err)
			must.Eq(t, tc.want, got)
		})
	}
}

func TestRoundUp(t *testing.T) {
	for bytes, want := range map[uint64]uint64{
		0: 0, 1: 2 << 20, 2 << 20: 2 << 20, 2<<20 + 1: 4 << 20, 300 << 20: 300 << 20,
	} {
		must.Eq(t, want, roundUp(bytes))
	}
}

func TestUUIDBytes(t *testing.T) {
	raw, err := uuidBytes("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")
	must.NoError(t, err)
	must.Eq(t, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, raw)
	for _, bad := range []string{"", "GPU-", "0", "GPU-0001", "GPU-xx010203-0405-0607-0809-0a0b0c0d0e0f"} {
		_, err := uuidBytes(bad)
		must.ErrorContains(t, err, "is not the UUID of a GPU")
	}
}

// meter returns a Meter whose measurements are the test's.
func meter(cacheFile string, measure func() (uint64, error)) (m *Meter, log *strings.Builder, measured *int) {
	log, measured = &strings.Builder{}, new(int)
	m = NewMeter(Options{CacheFile: cacheFile, Logger: hclog.New(&hclog.LoggerOptions{Output: log})})
	m.measure = func(context.Context, string, string) (uint64, error) {
		*measured++
		return measure()
	}
	return m, log, measured
}

var h200 = GPU{UUID: simtest.H200UUID0, Name: "NVIDIA H200", DriverVersion: "570.124.06"}

func cost(t *testing.T, m *Meter, gpu GPU) uint64 {
	t.Helper()
	bytes, err := m.Cost(t.Context(), gpu)
	must.NoError(t, err)
	return bytes
}

func TestMeter_remembers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "context-cost.json")
	m, _, measured := meter(file, func() (uint64, error) { return 300 << 20, nil })
	must.Eq(t, 300<<20, cost(t, m, h200))
	must.Eq(t, 300<<20, cost(t, m, h200))
	must.Eq(t, 1, *measured)

	// A restart knows it still; a new driver is measured again.
	m, _, measured = meter(file, func() (uint64, error) { return 400 << 20, nil })
	must.Eq(t, 300<<20, cost(t, m, h200))
	must.Eq(t, 0, *measured)
	newer := h200
	newer.DriverVersion = "580.1"
	must.Eq(t, 400<<20, cost(t, m, newer))

	m, _, measured = meter(file, func() (uint64, error) { return 500 << 20, nil })
	must.Eq(t, 400<<20, cost(t, m, newer))
	must.Eq(t, 0, *measured)
}

func TestMeter_brokenCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "context-cost.json")
	must.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	m, log, _ := meter(file, func() (uint64, error) { return 300 << 20, nil })
	must.Eq(t, 300<<20, cost(t, m, h200))
	must.StrContains(t, log.String(), "could not read the known costs of CUDA contexts, measuring again")
	m, _, measured := meter(file, func() (uint64, error) { return 400 << 20, nil })
	must.Eq(t, 300<<20, cost(t, m, h200))
	must.Eq(t, 0, *measured)
}

// Where nothing can be measured a default stands in, is said to be one, is not
// kept, and is replaced when a later attempt succeeds.
func TestMeter_default(t *testing.T) {
	file := filepath.Join(t.TempDir(), "context-cost.json")
	fail := errors.New("the GPU is full")
	m, log, measured := meter(file, func() (uint64, error) { return 300 << 20, fail })
	now := time.Unix(1000, 0)
	m.now = func() time.Time { return now }
	must.Eq(t, DefaultBytes, cost(t, m, h200))
	must.Eq(t, DefaultBytes, cost(t, m, h200))
	must.Eq(t, 1, *measured)
	must.StrContains(t, log.String(), "could not measure what a CUDA context costs, assuming a default")
	must.StrContains(t, log.String(), "the GPU is full")

	fail = nil
	now = now.Add(retryAfter + 1)
	must.Eq(t, 300<<20, cost(t, m, h200))
	must.Eq(t, 2, *measured)
}

// What is known is so without a measurement; a default is not known.
func TestMeter_Known(t *testing.T) {
	file := filepath.Join(t.TempDir(), "context-cost.json")
	fail := errors.New("the GPU is full")
	m, _, _ := meter(file, func() (uint64, error) { return 300 << 20, fail })
	_, known := m.Known(h200)
	must.False(t, known)
	must.Eq(t, DefaultBytes, cost(t, m, h200))
	_, known = m.Known(h200)
	must.False(t, known)

	m, _, _ = meter(file, func() (uint64, error) { return 300 << 20, nil })
	must.Eq(t, 300<<20, cost(t, m, h200))
	later, _, measured := meter(file, nil)
	for _, m := range []*Meter{m, later} {
		bytes, known := m.Known(h200)
		must.True(t, known)
		must.Eq(t, 300<<20, bytes)
	}
	must.Eq(t, 0, *measured)
}

func TestMeter_waitsNoLongerThanItsContext(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	m, _, _ := meter("", func() (uint64, error) { <-release; return 0, nil })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := m.Cost(ctx, h200)
	must.ErrorIs(t, err, context.DeadlineExceeded)
}
