// Package explain says whether a job of Nomad gets the devices that it requests: what Nomad's scheduler decides, and what of each
// GPU is free. It changes nothing, neither in Nomad nor on a node.
package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Verdict is what becomes of a task group.
type Verdict string

// The verdicts, from best to worst.
const (
	Runs  Verdict = "runs"  // it has all its allocations
	Fits  Verdict = "fits"  // it would get a place now
	Waits Verdict = "waits" // it gets one when something ends
	Never Verdict = "never" // it gets none on the nodes as they are
)

// Report is what there is to say of a job.
type Report struct {
	Job       string   `json:"job"`
	Namespace string   `json:"namespace"`
	Groups    []Group  `json:"groups"`
	Devices   []Device `json:"devices"`
}

// Group is a task group of the job.
type Group struct {
	Name     string    `json:"name"`
	Verdict  Verdict   `json:"verdict"`
	Reason   string    `json:"reason"`
	Requests []Request `json:"requests"`
	// Scheduler is what Nomad says where it finds no place; nil otherwise.
	Scheduler *Scheduler `json:"scheduler,omitempty"`
	// count is how many allocations the job wants of it.
	count int
}

// Request is a device block of a task.
type Request struct {
	Task   string `json:"task"`
	Device string `json:"device"`
	Count  int    `json:"count"`
	// Constraints are the block's, which Nomad alone judges.
	Constraints []string `json:"constraints,omitempty"`
}

// Scheduler is why Nomad's scheduler finds no place: how many nodes it looked at, why it left some out, and what others lack.
type Scheduler struct {
	Evaluated int            `json:"evaluated"`
	Filtered  map[string]int `json:"filtered,omitempty"`
	Exhausted map[string]int `json:"exhausted,omitempty"`
}

// Explain explains a job: one that Nomad has, or a jobspec that is not registered.
func Explain(ctx context.Context, client *api.Client, job *api.Job) (*Report, error) {
	query := (&api.QueryOptions{Namespace: namespaceOf(job)}).WithContext(ctx)
	write := (&api.WriteOptions{Namespace: namespaceOf(job)}).WithContext(ctx)
	planned := planOf(job)
	plan, _, err := client.Jobs().Plan(planned, false, write)
	if err != nil {
		return nil, fmt.Errorf("have Nomad plan job %q: %w", *job.ID, err)
	}
	allocs, _, err := client.Jobs().Allocations(*planned.ID, false, query)
	if err != nil {
		return nil, fmt.Errorf("list the allocations of job %q: %w", *job.ID, err)
	}
	r := &Report{Job: *job.ID, Namespace: namespaceOf(job), Groups: []Group{}}
	for _, group := range job.TaskGroups {
		r.Groups = append(r.Groups, newGroup(group))
	}
	inventory, err := takeInventory(ctx, client, r.Groups)
	if err != nil {
		return nil, err
	}
	r.Devices = inventory.devices(r.Groups)
	for i := range r.Groups {
		g := &r.Groups[i]
		g.judge(plan.FailedTGAllocs[g.Name], running(allocs, g.Name), r.Devices, inventory.names())
	}
	return r, nil
}

// Find returns the job that an argument names: a jobspec if it is a file, else a job that Nomad has. The variables are those of a
// jobspec, as in a variable file.
func Find(ctx context.Context, client *api.Client, name, namespace, variables string) (*api.Job, error) {
	text, err := os.ReadFile(name)
	switch {
	case err == nil:
		job, err := client.Jobs().ParseHCLOpts(&api.JobsParseRequest{JobHCL: string(text), Canonicalize: true, Variables: variables})
		if err != nil {
			return nil, fmt.Errorf("have Nomad parse %s: %w", name, err)
		}
		if namespace != "" {
			job.Namespace = &namespace
		}
		return job, nil
	case namesFile(name), errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("read the jobspec: %w", err)
	case variables != "":
		return nil, fmt.Errorf("--var and --var-file are for a jobspec, and there is no file %s", name)
	}
	job, _, err := client.Jobs().Info(name, (&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.StatusCode() == 404 {
		return nil, fmt.Errorf("there is no file and no job %q in namespace %q: name a jobspec, or a job of nomad job status, and its "+
			"--namespace", name, cmp.Or(namespace, api.DefaultNamespace))
	}
	if err != nil {
		return nil, fmt.Errorf("read job %q: %w", name, err)
	}
	return job, nil
}

// namesFile reports whether an argument names a file, whether or not that exists. A job's name may have slashes, too: those of the
// instances of periodic and parameterized jobs have.
func namesFile(name string) bool {
	return filepath.IsAbs(name) || strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") ||
		slices.Contains([]string{".hcl", ".nomad", ".json"}, filepath.Ext(name))
}

// planOf is the job for Nomad to plan. One that is stopped is planned as if it were run again; of one that runs at set times or
// when it is dispatched, Nomad would plan nothing, so that what it starts then is planned.
func planOf(job *api.Job) *api.Job {
	planned := *job
	stop := false
	planned.Stop = &stop
	if job.ParameterizedJob != nil || job.Periodic != nil {
		id := *job.ID + "-explained"
		planned.ID, planned.Name = &id, &id
		planned.ParameterizedJob, planned.Periodic = nil, nil
	}
	return &planned
}

func namespaceOf(job *api.Job) string {
	if job.Namespace == nil {
		return api.DefaultNamespace
	}
	return cmp.Or(*job.Namespace, api.DefaultNamespace)
}

func newGroup(group *api.TaskGroup) Group {
	g := Group{Name: *group.Name, Requests: requestsOf(group), count: 1}
	if group.Count != nil {
		g.count = *group.Count
	}
	return g
}

func requestsOf(group *api.TaskGroup) []Request {
	requests := []Request{}
	for _, task := range group.Tasks {
		if task.Resources == nil {
			continue
		}
		for _, device := range task.Resources.Devices {
			r := Request{Task: task.Name, Device: device.Name, Count: 1}
			if device.Count != nil {
				r.Count = int(min(*device.Count, math.MaxInt32)) // no node has more
			}
			for _, c := range device.Constraints {
				r.Constraints = append(r.Constraints, fmt.Sprintf("%s %s %s", c.LTarget, c.Operand, c.RTarget))
			}
			requests = append(requests, r)
		}
	}
	return requests
}

// running lists the nodes on which allocations of a group run.
func running(allocs []*api.AllocationListStub, group string) []string {
	var nodes []string
	for _, alloc := range allocs {
		if alloc.TaskGroup == group && alloc.ClientStatus == api.AllocClientStatusRunning && alloc.DesiredStatus == api.AllocDesiredStatusRun {
			nodes = append(nodes, alloc.NodeName)
		}
	}
	slices.Sort(nodes)
	return nodes
}
