// Package nvml alone uses NVIDIA's management library. It loads libnvidia-ml.so.1 from a driver root, reads
// the properties and the state of this node's GPUs, and partitions them with MIG.
package nvml

import (
	"context"
	"fmt"
	"time"
)

// Interface is what Tranche uses of NVML. Each call ends when its context does, even if the driver does not answer.
type Interface interface {
	// Read lists the GPUs. If there is no driver (yet) the error is a *NoDriverError; the next call tries again.
	Read(ctx context.Context) (*Node, error)
	// Processes lists the processes that use a GPU to compute or to render, each once, with process IDs of the caller's PID
	// namespace.
	Processes(ctx context.Context, uuid string) ([]Process, error)
	// ProcessUtilization returns how busy a GPU was with each process since a time, by process ID. Processes that did not use
	// it are left out. It is nil where the driver does not report that, as with MIG.
	ProcessUtilization(ctx context.Context, uuid string, since time.Time) (map[int]Busy, error)
	// Telemetry returns what a GPU measures of itself.
	Telemetry(ctx context.Context, uuid string) (*Telemetry, error)
	// Health returns the state of a GPU.
	Health(ctx context.Context, uuid string) (*Health, error)
	// SetComputeMode sets which processes may compute on a GPU, until the driver is loaded again.
	SetComputeMode(ctx context.Context, uuid string, mode ComputeMode) error
	// SetMemoryLimit has the driver limit how much of a GPU's memory the processes of a cgroup may hold together: beyond it they
	// get none. NoMemoryLimit ends that. The cgroup is the path of its directory in cgroup v2; only root may call it. Drivers have
	// it from R615 on, for GPUs that are not in MIG mode.
	SetMemoryLimit(ctx context.Context, uuid, cgroup string, bytes uint64) error
	// MemoryLimit returns that limit, and what the processes hold. For a cgroup without a limit it is an error.
	MemoryLimit(ctx context.Context, uuid, cgroup string) (limitBytes, usedBytes uint64, err error)
	// Events sends Xid errors until the context ends, and closes the channel then. It sends those that happen while there
	// is a session, which Read begins: to see earlier ones, read the Health of GPUs. There may be one receiver at a time,
	// and no call waits for it.
	Events(ctx context.Context) <-chan Event
	// EventsError returns why the receiver of Events misses some; nil if it does not. What fails is retried.
	EventsError() error
	// Close ends the session with the driver. Read begins a new one.
	Close(ctx context.Context) error
}

// Busy is how busy a GPU was with a process, in ratios from 0 to 1.
type Busy struct {
	// Multiprocessors is how busy the multiprocessors were last.
	Multiprocessors float64
	// Greatest is the greatest ratio of the multiprocessors, the memory, and the video encoder and decoder at any time. A program
	// that only transcodes keeps the multiprocessors at 0.
	Greatest float64
}

// Node is what NVML reports of this node.
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
	// MemoryBytes is the physical memory, and ReservedBytes the part that the driver reserves for itself; 0 if unknown.
	MemoryBytes, ReservedBytes uint64
	// UsedBytes is the memory that all processes and the driver use.
	UsedBytes uint64
	// UtilizationPercent is the share of the last sample period in which a kernel ran; -1 if unknown.
	UtilizationPercent int
	// MIG is the MIG mode of the GPU and its instances.
	MIG MIG
	// Origin is what only a MIG instance has; nil for a physical GPU.
	Origin *Origin
	Traits
}

// UsableBytes returns the memory that processes can allocate.
func (g GPU) UsableBytes() uint64 { return g.MemoryBytes - min(g.ReservedBytes, g.MemoryBytes) }

// Failure is a GPU that did not answer.
type Failure struct {
	Index int
	// UUID is empty if the GPU never answered in this session.
	UUID string
	Err  error
}

// Process is a process that has a context on a GPU.
type Process struct {
	PID int
	// OnlyRenders is whether it has none to compute, such as a display server.
	OnlyRenders bool
	// UsedBytes is the memory that it uses on the GPU. It is valid only if UsedKnown: some drivers do not report it, and
	// none does in some MIG modes.
	UsedBytes uint64
	UsedKnown bool
}

// NoDriverError says that there is no driver: no library in the driver root, or a library whose kernel module is not
// loaded.
type NoDriverError struct {
	// DriverRoot is where the library was searched.
	DriverRoot string
	// Err names the paths that were searched, or is the error of the library.
	Err error
}

func (e *NoDriverError) Error() string {
	return fmt.Sprintf("no NVIDIA driver: %v", e.Err)
}

// Unwrap returns the reason.
func (e *NoDriverError) Unwrap() error { return e.Err }
