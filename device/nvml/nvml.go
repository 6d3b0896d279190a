// Package nvml is the only one that knows NVIDIA's management library. It loads
// libnvidia-ml.so.1 from a driver root and says what the GPUs of this node are
// and how they fare.
package nvml

import (
	"context"
	"fmt"
)

// Interface is what Tranche asks of NVML. Each call ends when its context does,
// even where the driver doesn't answer.
type Interface interface {
	// Read tells what GPUs there are. Where there is no driver (yet) the error
	// is a *NoDriverError; the next call looks again.
	Read(ctx context.Context) (*Node, error)
	// Processes lists the processes that compute on a GPU, with process IDs as
	// the caller's PID namespace has them.
	Processes(ctx context.Context, uuid string) ([]Process, error)
	// Telemetry tells what a GPU measures of itself now.
	Telemetry(ctx context.Context, uuid string) (*Telemetry, error)
	// Health tells in what state a GPU is.
	Health(ctx context.Context, uuid string) (*Health, error)
	// SetComputeMode sets who may compute on a GPU, until the driver is loaded
	// anew.
	SetComputeMode(ctx context.Context, uuid string, mode ComputeMode) error
	// Events delivers Xid errors until the context ends, and closes the channel
	// then. They come as long as Read has begun a session, and are those from
	// then on only: whoever listens reads the Health of GPUs, too. There may be
	// one listener at a time, and no call waits for it.
	Events(ctx context.Context) <-chan Event
	// Close ends the session with the driver. Read begins a new one.
	Close(ctx context.Context) error
}

// Node is what NVML says of this node.
type Node struct {
	// DriverVersion is the driver's own version, such as 570.124.06.
	DriverVersion string
	// CUDAVersion is the newest CUDA that the driver supports, such as 12.8.
	CUDAVersion string
	// GPUs are those that answered, in the order of NVML's index.
	GPUs []GPU
	// Failed are those that NVML counts, but that did not answer.
	Failed []Failure
}

// GPU is one GPU that answered.
type GPU struct {
	// Index is NVML's, which follows the PCI bus.
	Index int
	UUID  string
	// Name is the product's name, such as NVIDIA H200.
	Name     string
	PCIBusID string
	// Minor is the number of the device node /dev/nvidia<minor>.
	Minor int
	// ComputeCapability is major.minor, such as 9.0.
	ComputeCapability string
	// MemoryBytes is the physical memory, and ReservedBytes what the driver
	// keeps of it for itself, 0 where it doesn't say.
	MemoryBytes, ReservedBytes uint64
	// UsedBytes is what all processes and the driver hold of the memory.
	UsedBytes uint64
	// UtilizationPercent is the share of the last sample period in which a
	// kernel ran; -1 where the GPU doesn't say.
	UtilizationPercent int
	// MIG is what MIG has made of the GPU.
	MIG MIG
	Traits
}

// UsableBytes is the memory that processes can get.
func (g GPU) UsableBytes() uint64 { return g.MemoryBytes - min(g.ReservedBytes, g.MemoryBytes) }

// Failure is a GPU that did not answer.
type Failure struct {
	Index int
	// UUID is empty where the GPU never answered in this session.
	UUID string
	Err  error
}

// Process is one process that holds a CUDA context.
type Process struct {
	PID int
	// UsedBytes is the memory it holds on the GPU, and is known only if
	// UsedKnown: some drivers and MIG modes don't tell.
	UsedBytes uint64
	UsedKnown bool
}

// NoDriverError says that there is no driver to talk to: no library in the
// driver root, or a library whose kernel module isn't loaded.
type NoDriverError struct {
	// DriverRoot is where the library was looked for.
	DriverRoot string
	// Err tells where what was searched, or what the library said.
	Err error
}

func (e *NoDriverError) Error() string {
	return fmt.Sprintf("no NVIDIA driver to talk to: %v", e.Err)
}

// Unwrap returns the reason.
func (e *NoDriverError) Unwrap() error { return e.Err }
