package contextcost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/internal/size"
)

// retryAfter is the time from a failed measurement to the next attempt.
const retryAfter = 5 * time.Minute

// GPU is what the memory of a context depends on.
type GPU struct {
	UUID, Name, DriverVersion string
}

// Options configure a Meter.
type Options struct {
	// DriverRoot is the directory tree with the driver's libraries.
	DriverRoot string
	// CacheFile keeps measurements across restarts, because a context can be created only while the GPU has room for one.
	// Empty is no file.
	CacheFile string
	Logger    hclog.Logger
}

// Meter measures once per GPU and driver version, and caches the results.
type Meter struct {
	options Options
	measure func(ctx context.Context, driverRoot, uuid string) (uint64, error)
	now     func() time.Time

	mu      sync.Mutex
	entries map[GPU]*entry
	fileMu  sync.Mutex
}

// entry is one measurement, finished once done is closed.
type entry struct {
	done  chan struct{}
	bytes uint64
	// retry is when a failed measurement is repeated; zero for one that succeeded.
	retry time.Time
}

// NewMeter returns a Meter.
func NewMeter(options Options) *Meter {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	return &Meter{options: options, measure: Measure, now: time.Now, entries: make(map[GPU]*entry)}
}

// Cost returns the memory of a context on the GPU, in bytes. If it cannot be measured, it is DefaultBytes, and the reason is
// logged. The error is ctx's.
func (m *Meter) Cost(ctx context.Context, gpu GPU) (uint64, error) {
	m.mu.Lock()
	e := m.entries[gpu]
	if e == nil || (!e.retry.IsZero() && m.now().After(e.retry)) {
		e = &entry{done: make(chan struct{})}
		m.entries[gpu] = e
		// It has its own time limit, and other callers may wait for it.
		go m.fill(context.WithoutCancel(ctx), gpu, e)
	}
	m.mu.Unlock()

	select {
	case <-e.done:
		return e.bytes, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the cost of a CUDA context on %s: %w", gpu.UUID, ctx.Err())
	}
}

// Known is like Cost, but returns false instead of measuring.
func (m *Meter) Known(gpu GPU) (uint64, bool) {
	m.mu.Lock()
	e := m.entries[gpu]
	m.mu.Unlock()
	if e != nil {
		select {
		case <-e.done:
			return e.bytes, e.retry.IsZero()
		default:
		}
	}
	return m.cached(gpu)
}

// fill completes an entry from the cache file or by measuring.
func (m *Meter) fill(ctx context.Context, gpu GPU, e *entry) {
	log := m.options.Logger.With("gpu", gpu.UUID, "name", gpu.Name)
	var retry time.Time
	cost, cached := m.cached(gpu)
	if !cached {
		var err error
		cost, err = m.measure(ctx, m.options.DriverRoot, gpu.UUID)
		if err == nil {
			log.Info("measured what a CUDA context costs", "memory", size.Format(cost))
			m.keep(gpu, cost)
		} else {
			cost, retry = DefaultBytes, m.now().Add(retryAfter)
			log.Warn("could not measure what a CUDA context costs, assuming a default: set context_memory to override it",
				"memory", size.Format(cost), "error", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.bytes, e.retry = cost, retry
	close(e.done)
}

// cacheEntry is one entry of the cache file.
type cacheEntry struct {
	UUID          string `json:"uuid"`
	Name          string `json:"name"`
	DriverVersion string `json:"driver_version"`
	Bytes         uint64 `json:"bytes"`
}

func (c cacheEntry) gpu() GPU { return GPU{c.UUID, c.Name, c.DriverVersion} }

func (m *Meter) cached(gpu GPU) (uint64, bool) {
	for _, c := range m.readCache() {
		if c.gpu() == gpu && c.Bytes > 0 {
			return c.Bytes, true
		}
	}
	return 0, false
}

// keep adds a measurement to the cache file. Without the file it is only measured again.
func (m *Meter) keep(gpu GPU, cost uint64) {
	if m.options.CacheFile == "" {
		return
	}
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	entries := []cacheEntry{{gpu.UUID, gpu.Name, gpu.DriverVersion, cost}}
	for _, c := range m.readCache() {
		if c.UUID != gpu.UUID {
			entries = append(entries, c)
		}
	}
	if err := writeCache(m.options.CacheFile, entries); err != nil {
		m.options.Logger.Warn("could not keep what a CUDA context costs", "file", m.options.CacheFile, "error", err)
	}
}

func (m *Meter) readCache() []cacheEntry {
	if m.options.CacheFile == "" {
		return nil
	}
	content, err := os.ReadFile(m.options.CacheFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var entries []cacheEntry
	if err == nil {
		err = json.Unmarshal(content, &entries)
	}
	if err != nil {
		m.options.Logger.Warn("could not read the known costs of CUDA contexts, measuring again", "file", m.options.CacheFile, "error", err)
		return nil
	}
	return entries
}

func writeCache(path string, entries []cacheEntry) error {
	content, err := json.MarshalIndent(entries, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(path, append(content, '\n'), 0o600)
}
