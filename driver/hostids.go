package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
)

// idsPerContainer is how many IDs a container with a user namespace has: those that images use.
const idsPerContainer = 1 << 16

// idRange is a range of the host's user and group IDs.
type idRange struct{ first, count uint64 }

func (r idRange) overlaps(other idRange) bool {
	return r.first < other.first+other.count && other.first < r.first+r.count
}

// mappings map the IDs of a container from 0 on to the range.
func (r idRange) mappings() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(r.first), Size: uint32(r.count)}}
}

func (r idRange) String() string { return fmt.Sprintf("%d:%d", r.first, r.count) }

// parseHostIDs reads the value of naming.HostIDs.
func parseHostIDs(label string) (idRange, error) {
	first, count, _ := strings.Cut(label, ":")
	firstID, errFirst := strconv.ParseUint(first, 10, 32)
	number, errCount := strconv.ParseUint(count, 10, 32)
	return idRange{firstID, number}, errors.Join(errFirst, errCount)
}

// free returns the first part of the range, of one container's size, that none of the taken ones overlaps. Taking the
// first has a task that starts again get the same IDs most of the time, and the copy of its image that has them.
func (r idRange) free(taken []idRange) (idRange, bool) {
next:
	for first := r.first; first+idsPerContainer <= r.first+r.count; first += idsPerContainer {
		candidate := idRange{first, idsPerContainer}
		for _, other := range taken {
			if candidate.overlaps(other) {
				continue next
			}
		}
		return candidate, true
	}
	return idRange{}, false
}

// idReservations are the ranges of containers that are being created, by the container's ID. Those of containers that
// exist are in their labels.
type idReservations struct {
	mu         sync.Mutex
	containers map[string]idRange
}

// reserveHostIDs sets host IDs aside for the task's container, where it is to have some of its own. No two containers
// that live at the same time share any: what one leaves on a disk, or does to a process, would be the other's to touch.
// The function that it returns is to be called when the container exists or will not.
func (d *Driver) reserveHostIDs(ctx context.Context, s *startup) (release func(), err error) {
	if s.options.Userns != usernsAuto {
		return func() {}, nil
	}
	all, err := d.config.usernsRange(subIDs)
	if err != nil {
		return nil, err
	}
	reserved := &d.hostIDs
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	taken, err := d.labelledHostIDs(ctx)
	if err != nil {
		return nil, err
	}
	for _, ids := range reserved.containers {
		taken = append(taken, ids)
	}
	ids, ok := all.free(taken)
	if !ok {
		return nil, nstructs.NewRecoverableError(fmt.Errorf("option userns_mode = %q: all of the node's IDs for user "+
			"namespaces, %s, are in use by other tasks; stop one, or the operator can widen the plugin's userns_range",
			s.options.Userns, all), true)
	}
	if reserved.containers == nil {
		reserved.containers = map[string]idRange{}
	}
	reserved.containers[s.id] = ids
	s.hostIDs = &ids
	return func() {
		reserved.mu.Lock()
		defer reserved.mu.Unlock()
		delete(reserved.containers, s.id)
	}, nil
}

// labelledHostIDs are the ranges of all containers of ours that exist.
func (d *Driver) labelledHostIDs(ctx context.Context) ([]idRange, error) {
	ctx, cancel := context.WithTimeout(ctx, client.CallTimeout)
	defer cancel()
	records, err := d.client.ContainerService().List(ctx, fmt.Sprintf("labels.%q", naming.HostIDs))
	if err != nil {
		return nil, d.client.Recoverable(fmt.Errorf("look for the host IDs of other containers: %w", err))
	}
	var taken []idRange
	for _, record := range records {
		ids, err := parseHostIDs(record.Labels[naming.HostIDs])
		if err != nil {
			return nil, fmt.Errorf("read the host IDs of container %s from its label %s: %w", record.ID, naming.HostIDs, err)
		}
		taken = append(taken, ids)
	}
	return taken, nil
}

// withHostIDsLabel writes down the range of the task's container.
func withHostIDsLabel(ids *idRange) containerd.NewContainerOpts {
	if ids == nil {
		return containerd.WithAdditionalContainerLabels(nil)
	}
	return containerd.WithAdditionalContainerLabels(map[string]string{naming.HostIDs: ids.String()})
}
