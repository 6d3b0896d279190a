// Package nodeinfo is what a container runtime has to know of the GPUs of its node: which there are, and the CDI
// specification that brings them into a container. Both come from NVML, which takes the better part of a second and a
// dynamically linked program; so they are kept in files, under a name that changes with the driver, and this package
// reads them. Package generate makes them.
package nodeinfo

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

// GPU is a GPU of the node, or an instance that MIG has cut out of one.
type GPU struct {
	UUID string `json:"uuid"`
	// Index is NVML's.
	Index int `json:"index"`
	// Name is the product's name, such as NVIDIA H200.
	Name     string `json:"name"`
	PCIBusID string `json:"pci_bus_id,omitempty"`
	// MemoryBytes is the physical memory, UsableBytes what processes can get of it.
	MemoryBytes uint64 `json:"memory_bytes"`
	UsableBytes uint64 `json:"usable_bytes"`
	// ContextBytes is what one CUDA context costs before its first allocation.
	ContextBytes uint64 `json:"context_bytes"`
	// ComputeCapability is major.minor, such as 9.0.
	ComputeCapability string `json:"compute_capability,omitempty"`
	// MIGParent is the UUID of the GPU that an instance is part of; empty for a whole GPU.
	MIGParent string `json:"mig_parent,omitempty"`
}

// Place is where the files of a node are kept, and all that is chosen on which their contents depend.
type Place struct {
	// DriverRoot is the directory tree that holds the GPU driver.
	DriverRoot string
	// RunDir is that of the ledger; the files lie in its directory "node".
	RunDir string
	// CLIPath is the command tranche, which the CDI specification names for NVIDIA's hooks.
	CLIPath string
}

// Refresher makes the files of a place anew.
type Refresher func(ctx context.Context, place Place) error

// The files of a place.
const (
	specFile = "cdi.json"
	gpusFile = "gpus.json"
)

// Spec is the CDI specification of the node's GPUs. Where none is kept for the driver of now, or not one that names all
// of these devices such that no check refuses one, it is made anew first.
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

// GPUs are those of the node that answer, in the order of their index. Where they are not kept for the driver of now, NVML is asked first.
func (p Place) GPUs(ctx context.Context, refresh Refresher) ([]GPU, error) {
	gpus, err := kept(ctx, p, refresh, gpusFile, func(*[]GPU) error { return p.mayBeBack() })
	if err != nil {
		return nil, err
	}
	return *gpus, nil
}

// kept reads a file of the place, and has it made anew where it is missing, damaged or not as it has to be.
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
		return nil, fmt.Errorf("ask NVML of the driver root %s for the node's GPUs: %w", p.DriverRoot, err)
	}
	// The driver may have made device nodes when it was asked.
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

// KeepSpec writes the CDI specification of the node's GPUs.
func (p Place) KeepSpec(spec *cdispecs.Spec) error { return p.keep(specFile, spec) }

// KeepGPUs writes which GPUs the node has.
func (p Place) KeepGPUs(gpus []GPU) error { return p.keep(gpusFile, gpus) }

// keep writes a file at once, and removes those of earlier drivers.
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
		return fmt.Errorf("keep what NVML says of the node's GPUs: %w", err)
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
