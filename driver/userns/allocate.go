// Package userns gives containers user namespaces: host IDs of their own, files that belong to these, and a spec that the
// runtime can mount. It must not start containers.
package userns

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/recoverable"
)

// PerContainer is how many IDs a container with a user namespace has: those that images use.
const PerContainer = 1 << 16

// Range is a range of the host's user and group IDs.
type Range struct{ First, Count uint64 }

func (r Range) overlaps(other Range) bool {
	return r.First < other.First+other.Count && other.First < r.First+r.Count
}

// Mappings map the IDs of a container from 0 on to the range.
func (r Range) Mappings() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(r.First), Size: uint32(r.Count)}}
}

// String returns FIRST:COUNT.
func (r Range) String() string { return fmt.Sprintf("%d:%d", r.First, r.Count) }

// parseHostIDs reads the value of naming.HostIDs.
func parseHostIDs(label string) (Range, error) {
	first, count, _ := strings.Cut(label, ":")
	firstID, errFirst := strconv.ParseUint(first, 10, 32)
	number, errCount := strconv.ParseUint(count, 10, 32)
	return Range{firstID, number}, errors.Join(errFirst, errCount)
}

// free returns the first part of the range, of one container's size, that none of the taken ones overlaps. Taking the
// first has a task that starts again get the same IDs most of the time, and the copy of its image that has them.
func (r Range) free(taken []Range) (Range, bool) {
next:
	for first := r.First; first+PerContainer <= r.First+r.Count; first += PerContainer {
		candidate := Range{first, PerContainer}
		for _, other := range taken {
			if candidate.overlaps(other) {
				continue next
			}
		}
		return candidate, true
	}
	return Range{}, false
}

// Allocator allocates host IDs. Make one with NewAllocator.
type Allocator struct {
	client *client.Client
	mu     sync.Mutex
	// creating has the ranges of containers that are being created, by the container's ID. Those of containers that exist
	// are in their labels.
	creating map[string]Range
}

// NewAllocator returns an allocator for the containers of the client's namespace.
func NewAllocator(c *client.Client) *Allocator {
	return &Allocator{client: c, creating: map[string]Range{}}
}

// Allocate allocates a part of the range to a container. No two containers that live at the same time share IDs: what one
// leaves on a disk, or does to a process, would be the other's to touch. release is to be called when the container exists
// or will not.
func (a *Allocator) Allocate(ctx context.Context, containerID string, all Range) (ids *Range, release func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken, err := a.labelled(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, ids := range a.creating {
		taken = append(taken, ids)
	}
	free, ok := all.free(taken)
	if !ok {
		return nil, nil, recoverable.Error(fmt.Errorf("option userns_mode = %q: all of the node's IDs for user "+
			"namespaces, %s, are in use by other tasks; stop one, or the operator can widen the plugin's userns_range",
			Auto, all))
	}
	a.creating[containerID] = free
	return &free, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.creating, containerID)
	}, nil
}

// labelled returns the ranges of all containers of ours that exist.
func (a *Allocator) labelled(ctx context.Context) ([]Range, error) {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	records, err := a.client.ContainerService().List(ctx, fmt.Sprintf("labels.%q", naming.HostIDs))
	if err != nil {
		return nil, a.client.Recoverable(fmt.Errorf("look for the host IDs of other containers: %w", err))
	}
	var taken []Range
	for _, record := range records {
		ids, err := parseHostIDs(record.Labels[naming.HostIDs])
		if err != nil {
			return nil, fmt.Errorf("read the host IDs of container %s from its label %s: %w", record.ID, naming.HostIDs, err)
		}
		taken = append(taken, ids)
	}
	return taken, nil
}

// WithLabel writes down the range of the task's container.
func WithLabel(ids *Range) containerd.NewContainerOpts {
	if ids == nil {
		return containerd.WithAdditionalContainerLabels(nil)
	}
	return containerd.WithAdditionalContainerLabels(map[string]string{naming.HostIDs: ids.String()})
}
