// Package claim is the ledger of claims on this node: the slices of each claim, its limit, and its container.
//
// The ledger is one file per claim in a directory that survives a reboot, and one region per claim in a directory that does
// not. Any number of processes may use the same ledger at once; a change is made under a file lock and takes effect by one
// rename, so that a process that dies meanwhile leaves the ledger before or after the change.
package claim

import (
	"strconv"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// GPU is the GPU that a claim is on.
type GPU struct {
	// UUID is the NVML UUID.
	UUID string `json:"uuid"`
	// Index is the NVML index at the time of the reservation. It orders the claims of one container.
	Index int `json:"index"`
	// Name is the product name.
	Name string `json:"name"`
	// ContextBytes is what one CUDA context on this GPU costs before the first allocation.
	ContextBytes uint64 `json:"context_bytes"`
}

// Claim is a reservation of slices of one GPU.
type Claim struct {
	// ID names the claim in files, logs and messages: 8 hex digits of the hash of the claim token, from which the token cannot
	// be derived.
	ID     string   `json:"id"`
	GPU    GPU      `json:"gpu"`
	Slices []string `json:"slices"`
	// SliceBytes is the memory of one slice; 0 means an equal part of the limit for each slice.
	SliceBytes uint64 `json:"slice_bytes,omitempty"`
	// LimitBytes is the limit, or if there is none all memory: see Limited.
	LimitBytes uint64 `json:"limit_bytes"`
	// GPUHostMemoryBytes is the managed memory on the host that the container may allocate beyond the limit. It is per
	// container: 0 until one requests it, and again when that container is gone.
	GPUHostMemoryBytes uint64 `json:"gpu_host_memory_bytes,omitempty"`
	// Owner is who requested the claim: "nomad", "run" or "external".
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	// Starter is the process that starts the container, if it is known and the claim is not bound yet.
	Starter *proc.ID `json:"starter,omitempty"`
	// Container is the container that the claim is or was last bound to; nil until the first.
	Container *Container `json:"container,omitempty"`
	// Released is when that container was found to be gone: the claim is dormant then. It is zero otherwise.
	Released time.Time `json:"released,omitzero"`

	// The following fields are for modes other than ModeSlice, and for governed claims. Programs that do not know them refuse a
	// record that has them, as they should; so no other claim must have one.

	Mode Mode `json:"mode,omitzero"`
	// Unlimited reports that the claim has no limit: see Limited.
	Unlimited bool `json:"unlimited,omitempty"`
	// Enforcement is what holds the claim's programs to its limit: see Enforced.
	Enforcement Enforcement `json:"enforcement,omitzero"`
	// MIG is the MIG instance of a claim in ModeMIG. GPU is then that instance, with its UUID, which is empty until the instance
	// is created.
	MIG *MIG `json:"mig,omitempty"`
	// MPS is the share of a claim in ModeMPS.
	MPS *MPS `json:"mps,omitempty"`
	// Compute is the claim's part of the GPU's time; nil if that is left to the driver. Only claims in ModeSlice and
	// ModeTimeslice have one.
	Compute *Compute `json:"compute,omitempty"`
}

// Container is the container that a claim is bound to. It lives as long as its init process.
type Container struct {
	// Runtime is the program that runs the container: "runc", "containerd", "docker".
	Runtime string `json:"runtime"`
	ID      string `json:"id"`
	InitPID int    `json:"init_pid"`
	// InitStartTime distinguishes the process from a later one with the same ID: clock ticks since boot, field 22 of
	// /proc/PID/stat.
	InitStartTime uint64 `json:"init_start_time"`
	// BootID identifies the boot, since process IDs and clock ticks start again with each.
	BootID string    `json:"boot_id"`
	Bound  time.Time `json:"bound"`
	// Lacks describes in one line, for people, why the container's programs cannot find the GPU; "" if no reason is known.
	Lacks string `json:"lacks,omitempty"`
}

// ContainerKey identifies the container of a claim; empty if it has none.
func (c *Claim) ContainerKey() string {
	if c.Container == nil {
		return ""
	}
	return c.Container.ID + " " + strconv.FormatUint(c.Container.InitStartTime, 10)
}

// Alive reports whether a container's init process runs: the same process, in the same boot. A zombie does not. Where the
// kernel does not say, the container counts as living, since nothing may be taken from under one that is.
func Alive(c Container) bool {
	return proc.ID{PID: c.InitPID, StartTime: c.InitStartTime, BootID: c.BootID}.MayLive()
}

// Owners of claims.
const (
	OwnerNomad    = "nomad"
	OwnerRun      = "run"
	OwnerExternal = "external"
)

// DormantFor is how long a claim stays dormant. Nomad restarts a task in place without a new reservation and needs the claim
// then; it does not report that it will not restart a task, so dormant claims expire.
const DormantFor = 7 * 24 * time.Hour

// sliceInfix is between a GPU's UUID and a slice's number.
const sliceInfix = "/slice-"

// sliceDigits is the least number of digits of a slice's number.
const sliceDigits = 3

// SliceName returns the name of a slice of a GPU. All programs that reserve slices have to use these names: only equal names
// show that two claims are on the same memory.
func SliceName(gpuUUID string, number int) string {
	digits := strconv.Itoa(number)
	if number >= 0 && len(digits) < sliceDigits {
		digits = "000"[len(digits):] + digits
	}
	return gpuUUID + sliceInfix + digits
}

// ParseSliceName is the inverse of SliceName.
func ParseSliceName(name string) (gpuUUID string, number int, ok bool) {
	gpuUUID, digits, ok := strings.Cut(name, sliceInfix)
	number, err := strconv.Atoi(digits)
	if !ok || err != nil || number < 0 || SliceName(gpuUUID, number) != name {
		return "", 0, false
	}
	return gpuUUID, number, true
}

// SliceSize returns the memory of one of the claim's slices. If SliceBytes is not set, the limit is the memory of all slices.
func (c *Claim) SliceSize() uint64 {
	switch {
	case c.SliceBytes > 0:
		return c.SliceBytes
	case len(c.Slices) > 0:
		return c.LimitBytes / uint64(len(c.Slices))
	}
	return 0
}

// Covers reports whether the claim has memory that a slice of another size would be. Slices are parts of the GPU's memory in
// the order of their numbers, so that those of two sizes can be compared.
func (c *Claim) Covers(gpuUUID string, number int, sliceBytes uint64) bool {
	from, to := uint64(number)*sliceBytes, uint64(number+1)*sliceBytes
	size := c.SliceSize()
	for _, name := range c.Slices {
		uuid, n, ok := ParseSliceName(name)
		if ok && uuid == gpuUUID && uint64(n)*size < to && from < uint64(n+1)*size {
			return true
		}
	}
	return false
}
