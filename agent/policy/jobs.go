package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/internal/nomadclient"
)

// MetaKey is the key of a job's or a group's meta block by which it may be idle for longer than the operator's rule says.
const MetaKey = "tranche_idle_after"

// queryTimeout bounds what is asked of Nomad about one allocation or group.
const queryTimeout = 20 * time.Second

// jobs looks up and stops jobs in Nomad.
type jobs struct{ options nomadapi.Options }

// job is what Nomad says of the job of an allocation.
type job struct {
	nodeID string
	// devices are the IDs of the allocation's devices.
	devices []string
	// child is whether it is an instance of a parameterized or periodic job, which is stopped as a whole.
	child bool
	// idleAfter is for how long the job wants to be idle; 0 if it does not say. A problem is what is wrong with what it says.
	idleAfter time.Duration
	problem   string
}

// of looks up the job of an allocation.
func (j jobs) of(ctx context.Context, w claim.Workload) (*job, error) {
	client, err := nomadclient.New(j.options)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	alloc, _, err := client.Allocations().Info(w.Allocation, (&api.QueryOptions{Namespace: w.Namespace}).WithContext(ctx))
	if err != nil {
		return nil, explainNomad("read allocation "+w.Allocation, err)
	}
	found := &job{nodeID: alloc.NodeID}
	if alloc.AllocatedResources != nil {
		for _, task := range alloc.AllocatedResources.Tasks {
			for _, device := range task.Devices {
				found.devices = append(found.devices, device.DeviceIDs...)
			}
		}
	}
	if alloc.Job == nil {
		return nil, fmt.Errorf("read allocation %s: Nomad does not say its job", w.Allocation)
	}
	found.child = alloc.Job.ParentID != nil && *alloc.Job.ParentID != ""
	text := alloc.Job.Meta[MetaKey]
	if group := alloc.Job.LookupTaskGroup(alloc.TaskGroup); group != nil && group.Meta[MetaKey] != "" {
		text = group.Meta[MetaKey]
	}
	if text == "" {
		return found, nil
	}
	if found.idleAfter, err = time.ParseDuration(text); err != nil {
		found.problem = fmt.Sprintf("%s must be a duration such as \"6h\", got %.40q", MetaKey, text)
	}
	return found, nil
}

// group is what of a job is stopped at once.
type group struct{ namespace, job, name string }

// whole is whether the job is stopped rather than one of its groups.
func (g group) whole() bool { return g.name == "" }

// heldError says why a group is not stopped now.
type heldError struct{ why string }

func (e heldError) Error() string { return e.why }

// refused reports whether an error is Nomad's refusal, so that certainly nothing was stopped.
func refused(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && response.HasStatusCode() && response.StatusCode() < http.StatusInternalServerError
}

// check looks at a group of whose allocations some, all of them on a node, are idle. The error is a heldError if it has others. It
// returns the state of the job, so that stop does nothing to another one.
func (j jobs) check(ctx context.Context, g group, nodeID string, idle []string) (modifyIndex uint64, err error) {
	client, err := nomadclient.New(j.options)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	query := (&api.QueryOptions{Namespace: g.namespace}).WithContext(ctx)
	found, _, err := client.Jobs().Info(g.job, query)
	if err != nil {
		return 0, explainNomad("read job "+g.job, err)
	}
	allocs, _, err := client.Jobs().Allocations(g.job, false, query)
	if err != nil {
		return 0, explainNomad("list the allocations of job "+g.job, err)
	}
	if why := holds(g, allocs, nodeID, idle); why != "" {
		return 0, heldError{why}
	}
	return *found.JobModifyIndex, nil
}

// holds says why a group must not be stopped; empty if all that runs of it is idle.
func holds(g group, allocs []*api.AllocationListStub, nodeID string, idle []string) string {
	var running, elsewhere, active int
	for _, a := range allocs {
		if !g.whole() && a.TaskGroup != g.name || ended(a) {
			continue
		}
		running++
		switch {
		case a.NodeID != nodeID:
			elsewhere++
		case !slices.Contains(idle, a.ID):
			active++
		}
	}
	switch {
	case running == 0:
		return "none of its allocations runs in Nomad"
	case active > 0:
		return fmt.Sprintf("%d of its %d allocations have not been idle for that long, or their use is unknown", active, running)
	case elsewhere > 0:
		return fmt.Sprintf("%d of its %d allocations are on other nodes, and this agent does not know their use", elsewhere, running)
	}
	return ""
}

func ended(a *api.AllocationListStub) bool {
	switch a.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// stop scales a group to 0, or stops an instance of a parameterized or periodic job.
func (j jobs) stop(ctx context.Context, g group, modifyIndex uint64, message string) error {
	client, err := nomadclient.New(j.options)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	write := (&api.WriteOptions{Namespace: g.namespace}).WithContext(ctx)
	if g.whole() {
		if _, _, err := client.Jobs().Deregister(g.job, false, write); err != nil {
			return explainNomad("stop job "+g.job, err)
		}
		return nil
	}
	request := &api.ScalingRequest{
		Count: new(int64), Target: map[string]string{"Job": g.job, "Group": g.name}, Message: message,
		Meta: map[string]any{"tranche": "idle"}, JobModifyIndex: modifyIndex,
	}
	if _, _, err := client.Jobs().ScaleWithRequest(g.job, request, write); err != nil {
		return explainNomad("scale group "+g.name+" of job "+g.job+" to 0", err)
	}
	return nil
}

// explainNomad says what to do about an error of Nomad's, which never has the token.
func explainNomad(action string, err error) error {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.HasStatusCode() && response.StatusCode() == http.StatusForbidden {
		return fmt.Errorf("%s: %w; the token in nomad_token_file needs read-job, and to stop groups scale-job, in the namespace "+
			"(submit-job for instances of parameterized and periodic jobs)", action, err)
	}
	return fmt.Errorf("%s: %w", action, err)
}
