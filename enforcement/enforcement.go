// Package enforcement has the GPU driver hold containers to the limits of their claims. From R615 on NVIDIA's driver limits the
// memory of a cgroup on a GPU, if it is told to by NVML. This package knows the cgroups, and not NVML.
package enforcement

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/tranche-gpu/tranche/claim"
)

// NoLimit is the limit of a cgroup without one, as NVML has it.
const NoLimit = math.MaxUint64

// Driver is what is needed of the GPU driver. nvml.Interface has it.
type Driver interface {
	// SetMemoryLimit limits the memory of a GPU that the processes of a cgroup may hold; NoLimit ends that. The cgroup is the
	// path of its directory.
	SetMemoryLimit(ctx context.Context, uuid, cgroup string, bytes uint64) error
	// MemoryLimit returns that limit, and what the cgroup's processes hold. Without a limit it is an error.
	MemoryLimit(ctx context.Context, uuid, cgroup string) (limitBytes, usedBytes uint64, err error)
}

// probeBytes is the limit of the cgroup with which a GPU is tried.
const probeBytes = 64 << 20

// NoInstances is why the driver holds no task in a MIG instance to its limit.
const NoInstances = "it limits no MIG instances"

// Probe returns why the driver cannot limit memory on a GPU; nil if it can. It sets a limit on a cgroup of its own, reads it back,
// and removes both.
func Probe(ctx context.Context, d Driver, uuid string) error {
	dir, err := temporary()
	if err != nil {
		return err
	}
	err = set(ctx, d, uuid, dir, probeBytes)
	if err == nil {
		err = d.SetMemoryLimit(ctx, uuid, dir, NoLimit)
	}
	return errors.Join(err, os.Remove(dir))
}

// Limits returns the limits of a container with these claims, by GPU: where the driver enforces one, the sum of all of its limits
// on that GPU.
func Limits(claims []*claim.Claim) map[string]uint64 {
	limits, byDriver := map[string]uint64{}, map[string]bool{}
	for _, c := range claims {
		if c.Limited() {
			limits[c.GPU.UUID] += c.LimitBytes
			byDriver[c.GPU.UUID] = byDriver[c.GPU.UUID] || c.ByDriver()
		}
	}
	for uuid := range limits {
		if !byDriver[uuid] {
			delete(limits, uuid)
		}
	}
	return limits
}

// Start limits a container that is being started: pid is its only process, and these are its claims.
func Start(ctx context.Context, d Driver, pid int, claims []*claim.Claim) error {
	limits := Limits(claims)
	if len(limits) == 0 {
		return nil
	}
	dir, err := Cgroup(pid)
	if err == nil {
		err = own(dir, pid)
	}
	if err != nil {
		return err
	}
	for uuid, bytes := range limits {
		if err := set(ctx, d, uuid, dir, bytes); err != nil {
			return err
		}
	}
	return nil
}

// Use is what a container holds of a GPU, and the limit of it.
type Use struct {
	LimitBytes, UsedBytes uint64
	// Restored reports that another limit stood, or none, and that it was set.
	Restored bool
}

// Hold sets the limits of a container that do not stand, and returns what it holds, by GPU. The process is any of the container's,
// and these are the container's claims. charged is what is taken from their limits by ID: a limit is not set below what is used.
func Hold(
	ctx context.Context, d Driver, pid int, claims []*claim.Claim, charged map[string]uint64,
) (map[string]Use, error) {
	dir, err := Cgroup(pid)
	if err != nil {
		return nil, err
	}
	uses := make(map[string]Use)
	var errs []error
	for uuid, bytes := range Limits(claims) {
		for _, c := range claims {
			if c.GPU.UUID == uuid {
				bytes -= min(charged[c.ID], bytes)
			}
		}
		use, err := hold(ctx, d, uuid, dir, bytes)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uses[uuid] = use
	}
	return uses, errors.Join(errs...)
}

// hold is Hold for one GPU.
func hold(ctx context.Context, d Driver, uuid, dir string, bytes uint64) (Use, error) {
	stands, used, err := d.MemoryLimit(ctx, uuid, dir)
	if err == nil {
		bytes = max(bytes, used)
	}
	if err == nil && stands == bytes {
		return Use{LimitBytes: bytes, UsedBytes: used}, nil
	}
	if err = set(ctx, d, uuid, dir, bytes); err == nil {
		_, used, err = d.MemoryLimit(ctx, uuid, dir)
	}
	return Use{LimitBytes: bytes, UsedBytes: used, Restored: true}, err
}

// set sets a limit, and reads it back.
func set(ctx context.Context, d Driver, uuid, dir string, bytes uint64) error {
	if err := enable(dir); err != nil {
		return err
	}
	if err := d.SetMemoryLimit(ctx, uuid, dir, bytes); err != nil {
		return err
	}
	stands, _, err := d.MemoryLimit(ctx, uuid, dir)
	if err == nil && stands != bytes {
		err = fmt.Errorf("the driver has set a limit of %d bytes for the cgroup %s on GPU %s instead of %d", stands, dir, uuid, bytes)
	}
	return err
}
