// Package gpuinfo caches facts about the node's GPUs from NVML: their list, and the CDI specification that adds them to a
// container. To query NVML takes most of a second and a dynamically linked program, so the results are cached in files, in a
// directory whose name changes with the driver. Package generate makes them.
package gpuinfo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// GPU is a GPU of the node, or a MIG instance of one.
type GPU struct {
	UUID string `json:"uuid"`
	// Index is the NVML index.
	Index int `json:"index"`
	// Name is the product's name, such as NVIDIA H200.
	Name     string `json:"name"`
	PCIBusID string `json:"pci_bus_id,omitempty"`
	// MemoryBytes is the physical memory, UsableBytes the part that processes can allocate.
	MemoryBytes uint64 `json:"memory_bytes"`
	UsableBytes uint64 `json:"usable_bytes"`
	// ContextBytes is what one CUDA context costs before its first allocation.
	ContextBytes uint64 `json:"context_bytes"`
	// ComputeCapability is major.minor, such as 9.0.
	ComputeCapability string `json:"compute_capability,omitempty"`
	// MIGParent is the UUID of a MIG instance's GPU; empty for a whole GPU.
	MIGParent string `json:"mig_parent,omitempty"`
	// DriverLimits is whether the driver can hold containers to their limits, and NoDriverLimits why it cannot.
	DriverLimits   bool   `json:"driver_limits,omitempty"`
	NoDriverLimits string `json:"no_driver_limits,omitempty"`
}

// Place is the directories of a node's cache and driver, and the command in its CDI specification.
type Place struct {
	// DriverRoot is the directory tree that holds the GPU driver.
	DriverRoot string
	// RunDir is the ledger's; the files are in its directory "node".
	RunDir string
	// CLIPath is the command tranche, which runs NVIDIA's hooks in the CDI specification.
	CLIPath string
}

// Refresher queries NVML and writes the files of a place.
type Refresher func(ctx context.Context, place Place) error

// The files of a place.
const (
	specFile = "cdi.json"
	gpusFile = "gpus.json"
)

// Spec returns the CDI specification of the node's GPUs. If the cached one is missing, or lacks one of these devices, or the
// check refuses one, it is generated first.
func (p Place) Spec(
	ctx context.Context, refresh Refresher, devices []string, checks ...func(*cdispecs.Device) error,
) (*cdispecs.Spec, error) {
	return kept(ctx, p, refresh, specFile, func(spec *cdispecs.Spec) error {
		for _, name := range devices {
			i := slices.IndexFunc(spec.Devices, func(d cdispecs.Device) bool { return d.Name == name })
			if i < 0 {
				gpus, _ := p.unanswered()
				return fmt.Errorf("NVML knows no device %s in the driver root %s%s", name, p.DriverRoot, missing(gpus))
			}
			for _, check := range checks {
				if err := check(&spec.Devices[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// GPUs returns the node's GPUs that answer, in the order of their index. If they are not cached, NVML is queried first.
func (p Place) GPUs(ctx context.Context, refresh Refresher) ([]GPU, error) {
	gpus, err := kept(ctx, p, refresh, gpusFile, func(*[]GPU) error { return p.mayBeBack() })
	if err != nil {
		return nil, err
	}
	return *gpus, nil
}

// kept reads a file of the cache, and refreshes it if it is missing, damaged or refused by the check.
func kept[T any](ctx context.Context, p Place, refresh Refresher, name string, check func(*T) error) (*T, error) {
	dir, err := p.dir()
	if err != nil {
		return nil, err
	}
	if value, err := read(filepath.Join(dir, name), check); err == nil {
		return value, nil
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if dir, err = p.dir(); err != nil {
		return nil, err
	}
	if value, err := read(filepath.Join(dir, name), check); err == nil {
		return value, nil // somebody else has asked while we waited
	}
	if err := refresh(ctx, p); err != nil {
		return nil, fmt.Errorf("query NVML of the driver root %s for the node's GPUs: %w", p.DriverRoot, err)
	}
	// The query may have created device nodes, which changes the fingerprint.
	if dir, err = p.dir(); err != nil {
		return nil, err
	}
	return read(filepath.Join(dir, name), check)
}

func read[T any](file string, check func(*T) error) (*T, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what is kept of the node's GPUs: %w", err)
	}
	value := new(T)
	if err := json.Unmarshal(content, value); err != nil {
		return nil, fmt.Errorf("read what is kept of the node's GPUs, %s: %w", file, err)
	}
	return value, check(value)
}

// KeepSpec writes the CDI specification of the node's GPUs to the cache.
func (p Place) KeepSpec(spec *cdispecs.Spec) error { return p.keep(specFile, spec) }

// KeepGPUs writes the list of the node's GPUs to the cache.
func (p Place) KeepGPUs(gpus []GPU) error { return p.keep(gpusFile, gpus) }

// keep writes a file atomically, and removes those of earlier drivers.
func (p Place) keep(name string, value any) error {
	dir, err := p.dir()
	if err != nil {
		return err
	}
	content, err := json.Marshal(value)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = renameio.WriteFile(filepath.Join(dir, name), content, 0o644, renameio.WithTempDir(dir),
			renameio.WithStaticPermissions(0o644))
	}
	if err != nil {
		return fmt.Errorf("cache the list of the node's GPUs: %w", err)
	}
	return p.removeOthers(dir)
}

func (p Place) removeOthers(dir string) error {
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("remove what was kept of earlier drivers: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == filepath.Base(dir) {
			continue
		}
		err := os.RemoveAll(filepath.Join(filepath.Dir(dir), entry.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove what was kept of earlier drivers: %w", err)
		}
	}
	return nil
}
