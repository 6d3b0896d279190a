// Package claim is the ledger of claims on this node: who holds which slices of which GPU, up to what limit, and in
// which container.
//
// The ledger is one file per claim in a directory that survives a reboot, and one region per claim in a directory that
// does not. Any number of processes may use the same ledger at once; a change is made under a file lock and takes
// effect in one rename, so that a process that dies in the midst of one leaves the ledger as it was or as it should be.
package claim

import (
	"time"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// GPU is the GPU that a claim is on.
type GPU struct {
	// UUID is the NVML UUID, which names the GPU for good.
	UUID string `json:"uuid"`
	// Index is the NVML index at the time of the reservation. It orders the claims of one container.
	Index int `json:"index"`
	// Name is the product name.
	Name string `json:"name"`
	// ContextBytes is what one CUDA context on this GPU costs before the first allocation.
	ContextBytes uint64 `json:"context_bytes"`
}

// Claim says who holds which slices of which GPU.
type Claim struct {
	// ID names the claim in files, logs and messages: 8 hex digits, taken from the hash of the claim token, so that
	// whoever knows the ID does not know the token.
	ID     string   `json:"id"`
	GPU    GPU      `json:"gpu"`
	Slices []string `json:"slices"`
	// SliceBytes is the memory of one slice; 0 where it is the limit's part of each.
	SliceBytes uint64 `json:"slice_bytes,omitempty"`
	// LimitBytes is the limit, or where there is none all memory that there is: see Limited.
	LimitBytes uint64 `json:"limit_bytes"`
	// GPUHostMemoryBytes is how much the container may allocate beyond the limit, as managed memory that lives on the
	// host. Each container asks anew: it is 0 until one does, and again when that one is gone.
	GPUHostMemoryBytes uint64 `json:"gpu_host_memory_bytes,omitempty"`
	// Owner says who asked for the claim: "nomad", "run" or "external".
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	// Starter is the process that starts the container, where that is known and the container is not bound yet.
	Starter *proc.ID `json:"starter,omitempty"`
	// Container is the container that the claim is or was last bound to; nil until the first.
	Container *Container `json:"container,omitempty"`
	// Released is when that container was found to be gone; zero unless it was.
	Released time.Time `json:"released,omitzero"`

	// What follows is of the modes beside ModeSlice. Programs that do not know them refuse a record with a field that they
	// do not know, which is right; so a claim of ModeSlice must not have one.

	Mode Mode `json:"mode,omitzero"`
	// Unlimited says that the claim has no limit of its own: see Limited.
	Unlimited bool `json:"unlimited,omitempty"`
	// MIG is the instance of a claim of ModeMIG. GPU is then that instance, with its UUID, which is empty as long as the
	// instance is being made.
	MIG *MIG `json:"mig,omitempty"`
	// MPS is the share of a claim of ModeMPS.
	MPS *MPS `json:"mps,omitempty"`
}

// Container is the container that a claim is bound to. Its init process stands for it: the container lives as long as
// that process does.
type Container struct {
	// Runtime says whose container this is: "runc", "containerd", "docker".
	Runtime string `json:"runtime"`
	ID      string `json:"id"`
	InitPID int    `json:"init_pid"`
	// InitStartTime tells the process from a later one with the same ID: clock ticks since boot, the 22nd field of
	// /proc/PID/stat.
	InitStartTime uint64 `json:"init_start_time"`
	// BootID tells this boot from others, since process IDs and clock ticks start over with each.
	BootID string    `json:"boot_id"`
	Bound  time.Time `json:"bound"`
	// Lacks says in one line what keeps the container's programs from finding the GPU, for people; "" where nothing is
	// known to.
	Lacks string `json:"lacks,omitempty"`
}

// Owners of claims.
const (
	OwnerNomad    = "nomad"
	OwnerRun      = "run"
	OwnerExternal = "external"
)

// DormantFor is how long a claim outlives its container. Nomad restarts a task in place without a new reservation, and
// the claim must still be there then; it never says that it won't, so the time has to end somewhere.
const DormantFor = 7 * 24 * time.Hour
