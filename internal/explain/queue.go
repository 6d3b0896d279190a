package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Queue is what waits for devices, in all namespaces that the token may read.
type Queue struct {
	// Groups are in the order in which Nomad last tried them.
	Groups []Blocked
	// Others is how many more groups wait, for something else than devices. Left is how many jobs were not looked at.
	Others, Left int
	// Devices are those that the groups request.
	Devices []Device
}

// Blocked is a task group for which Nomad's scheduler found no place when it last tried.
type Blocked struct {
	Job, Namespace string
	Tried          time.Time
	Group

	failed *api.AllocationMetric
}

// mostJobs bounds how many jobs are looked at: each takes a query.
const mostJobs = 200

// Waiting returns what waits. It plans nothing: Nomad keeps with each evaluation that is blocked why there was no place. The inventory
// is queried if it is nil.
func Waiting(ctx context.Context, client *api.Client, inventory *Inventory) (*Queue, error) {
	query := &api.QueryOptions{Namespace: api.AllNamespacesNamespace, Filter: `Status == "blocked"`}
	evaluations, _, err := client.Evaluations().List(query.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list Nomad's blocked evaluations: %w", err)
	}
	slices.SortFunc(evaluations, func(a, b *api.Evaluation) int { return cmp.Compare(a.CreateTime, b.CreateTime) })
	seen := make(map[[2]string]bool)
	evaluations = slices.DeleteFunc(evaluations, func(e *api.Evaluation) bool { // a system job has one for each node
		job := [2]string{e.Namespace, e.JobID}
		again := seen[job]
		seen[job] = true
		return again
	})
	q := &Queue{Left: max(0, len(evaluations)-mostJobs)}
	for _, e := range evaluations[:len(evaluations)-q.Left] {
		if err := q.add(ctx, client, e); err != nil {
			return nil, err
		}
	}
	if len(q.Groups) == 0 && inventory == nil {
		// A token without the right to list nodes is refused now, and not only when something waits.
		if _, _, err := client.Nodes().List((&api.QueryOptions{PerPage: 1}).WithContext(ctx)); err != nil {
			return nil, fmt.Errorf("list Nomad's nodes: %w", err)
		}
	}
	if len(q.Groups) == 0 {
		return q, nil
	}
	var groups []Group
	for _, b := range q.Groups {
		groups = append(groups, b.Group)
	}
	if inventory == nil {
		if inventory, err = takeInventory(ctx, client, groups); err != nil {
			return nil, err
		}
	}
	q.Devices = inventory.devices(groups)
	for i := range q.Groups {
		q.Groups[i].judge(q.Groups[i].failed, nil, q.Devices, inventory.names())
	}
	return q, nil
}

// add adds the groups that an evaluation has no place for.
func (q *Queue) add(ctx context.Context, client *api.Client, e *api.Evaluation) error {
	job, _, err := client.Jobs().Info(e.JobID, (&api.QueryOptions{Namespace: e.Namespace}).WithContext(ctx))
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.StatusCode() == http.StatusNotFound {
		return nil // it was purged meanwhile
	}
	if err != nil {
		return fmt.Errorf("read job %q: %w", e.JobID, err)
	}
	for _, group := range job.TaskGroups {
		failed := e.FailedTGAllocs[*group.Name]
		g := newGroup(group)
		switch {
		case failed == nil:
		case len(g.Requests) == 0:
			q.Others++
		default:
			q.Groups = append(q.Groups, Blocked{
				Job: e.JobID, Namespace: e.Namespace, Tried: time.Unix(0, e.CreateTime),
				Group: g, failed: failed,
			})
		}
	}
	return nil
}
