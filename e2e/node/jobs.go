package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Job parses a jobspec file as `nomad job run` does. Variables are given as "name=value".
func (n *Node) Job(path string, variables ...string) (*api.Job, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return n.ParseJob(string(text), variables...)
}

// ParseJob parses a jobspec.
func (n *Node) ParseJob(text string, variables ...string) (*api.Job, error) {
	job, err := n.Agent.API.Jobs().ParseHCLOpts(&api.JobsParseRequest{
		JobHCL: text, Canonicalize: true, Variables: hclVariables(variables),
	})
	if err != nil {
		return nil, fmt.Errorf("parse jobspec: %w", err)
	}
	return job, nil
}

// hclVariables writes "name=value" pairs as the variable file that the API takes.
func hclVariables(pairs []string) string {
	var b strings.Builder
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		if strings.Trim(value, "0123456789") == "" {
			fmt.Fprintf(&b, "%s = %s\n", name, value)
		} else {
			fmt.Fprintf(&b, "%s = %q\n", name, value)
		}
	}
	return b.String()
}

// Run registers a job and waits until its evaluation is done; it returns what the evaluation says of placement.
func (n *Node) Run(ctx context.Context, job *api.Job) (*api.Evaluation, error) {
	response, _, err := n.Agent.API.Jobs().Register(job, (&api.WriteOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("register job %s: %w", *job.ID, err)
	}
	return wait(ctx, func(q *api.QueryOptions) (*api.Evaluation, *api.QueryMeta, error) {
		return n.Agent.API.Evaluations().Info(response.EvalID, q)
	}, func(e *api.Evaluation) bool {
		return e.Status == "complete" || e.Status == "failed" || e.Status == "blocked"
	})
}

// wait asks by blocking query until what comes back is as wanted. Each query returns when something has changed.
func wait[T any](ctx context.Context, ask func(*api.QueryOptions) (T, *api.QueryMeta, error), wanted func(T) bool) (T, error) {
	q := (&api.QueryOptions{WaitTime: 30 * time.Second, AllowStale: true}).WithContext(ctx)
	var last T
	for {
		value, meta, err := ask(q)
		switch {
		case ctx.Err() != nil:
			return last, ctx.Err()
		case err != nil:
			return last, err
		case wanted(value):
			return value, nil
		}
		// An index of 0 would not wait: what was asked for has never been written yet.
		last, q.WaitIndex = value, max(meta.LastIndex, 1)
	}
}

// WaitReady waits until the client is ready, has its task driver and, where the node has GPUs, its slices.
func (n *Node) WaitReady(ctx context.Context) error {
	_, err := n.WaitNode(ctx, func(node *api.Node) bool {
		driver := node.Drivers["containerd"]
		return node.Status == "ready" && driver != nil && driver.Healthy && len(node.NodeResources.Devices) > 0
	})
	return err
}

// WaitDriver waits until the client is ready and has its task driver, with or without GPUs.
func (n *Node) WaitDriver(ctx context.Context) error {
	_, err := n.WaitNode(ctx, func(node *api.Node) bool {
		driver := node.Drivers["containerd"]
		return node.Status == "ready" && driver != nil && driver.Healthy
	})
	return err
}

// WaitNode waits until the client's node is as wanted.
func (n *Node) WaitNode(ctx context.Context, wanted func(*api.Node) bool) (*api.Node, error) {
	id := ""
	_, err := wait(ctx, n.Agent.API.Nodes().List, func(nodes []*api.NodeListStub) bool {
		for _, registered := range nodes {
			if registered.Name == filepath.Base(n.Dir) {
				id = registered.ID
			}
		}
		return id != ""
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the client to register: %w", err)
	}
	node, err := wait(ctx, func(q *api.QueryOptions) (*api.Node, *api.QueryMeta, error) {
		return n.Agent.API.Nodes().Info(id, q)
	}, wanted)
	if err != nil {
		return nil, fmt.Errorf("wait for the client's node: %w; the end of %s:\n%s", err, n.Agent.log, tail(n.Agent.log, 15))
	}
	return node, nil
}

// WaitAllocs waits until the job's allocations are as wanted.
func (n *Node) WaitAllocs(
	ctx context.Context, jobID string, wanted func([]*api.AllocationListStub) bool,
) ([]*api.AllocationListStub, error) {
	return wait(ctx, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
		return n.Agent.API.Jobs().Allocations(jobID, false, q)
	}, wanted)
}

// WaitAlloc waits until the job's newest allocation is as wanted.
func (n *Node) WaitAlloc(ctx context.Context, jobID string, wanted func(*api.AllocationListStub) bool) (*api.AllocationListStub, error) {
	var newest *api.AllocationListStub
	_, err := n.WaitAllocs(ctx, jobID, func(allocs []*api.AllocationListStub) bool {
		newest = nil
		for _, a := range allocs {
			if newest == nil || a.CreateIndex > newest.CreateIndex {
				newest = a
			}
		}
		return newest != nil && wanted(newest)
	})
	if err != nil {
		return nil, fmt.Errorf("wait for job %s: %w; %s", jobID, err, Story(newest))
	}
	return newest, nil
}

// WaitStatus waits until the job's newest allocation has the client status ("running", "complete", "failed"), and
// fails at once when it has ended otherwise.
func (n *Node) WaitStatus(ctx context.Context, jobID, status string) (*api.AllocationListStub, error) {
	alloc, err := n.WaitAlloc(ctx, jobID, func(a *api.AllocationListStub) bool {
		return a.ClientStatus == status || ended(a)
	})
	if err == nil && alloc.ClientStatus != status {
		err = fmt.Errorf("job %s is %s, not %s; %s", jobID, alloc.ClientStatus, status, Story(alloc))
	}
	return alloc, err
}

// ended says whether an allocation has ended on its client.
func ended(a *api.AllocationListStub) bool {
	return a.ClientStatus == "complete" || a.ClientStatus == "failed" || a.ClientStatus == "lost"
}

// Story tells the events of an allocation's tasks, for messages.
func Story(a *api.AllocationListStub) string {
	if a == nil {
		return "it has no allocation"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "allocation %s is %s (%s)", a.ID, a.ClientStatus, a.ClientDescription)
	for name, state := range a.TaskStates {
		for _, e := range state.Events {
			fmt.Fprintf(&b, "\n  %s: %s: %s", name, e.Type, e.DisplayMessage)
		}
	}
	return b.String()
}

// StopJob stops a job and waits until its allocations have ended on the client.
func (n *Node) StopJob(ctx context.Context, jobID string) error {
	if _, _, err := n.Agent.API.Jobs().Deregister(jobID, false, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("stop job %s: %w", jobID, err)
	}
	_, err := wait(ctx, func(q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
		return n.Agent.API.Jobs().Allocations(jobID, true, q)
	}, func(allocs []*api.AllocationListStub) bool {
		for _, a := range allocs {
			if !ended(a) {
				return false
			}
		}
		return true
	})
	return err
}

func (n *Node) stopJobs(ctx context.Context) error {
	var errs []error
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	jobs, _, err := n.Agent.API.Jobs().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("list the jobs: %w", err)
	}
	for _, job := range jobs {
		if job.Status != "dead" {
			errs = append(errs, n.StopJob(ctx, job.ID))
		}
	}
	return errors.Join(errs...)
}

// Logs returns what a task has written to stdout or stderr so far.
func (n *Node) Logs(ctx context.Context, allocID, task, stream string) (string, error) {
	alloc, _, err := n.Agent.API.Allocations().Info(allocID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return "", err
	}
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := n.Agent.API.AllocFS().Logs(alloc, false, task, stream, "start", 0, cancel, nil)
	var b strings.Builder
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				return b.String(), nil
			}
			b.Write(frame.Data)
		case err := <-errs:
			if errors.Is(err, io.EOF) {
				return b.String(), nil
			}
			return b.String(), err
		case <-ctx.Done():
			return b.String(), ctx.Err()
		}
	}
}

// Lines hands over each line that a task writes to stdout, from the beginning and as it comes, until each says
// that it has seen enough.
func (n *Node) Lines(ctx context.Context, allocID, task string, enough func(line string) bool) error {
	alloc, _, err := n.Agent.API.Allocations().Info(allocID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err
	}
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := n.Agent.API.AllocFS().Logs(alloc, true, task, "stdout", "start", 0, cancel, nil)
	rest := ""
	for {
		select {
		case frame, ok := <-frames:
			if !ok {
				return fmt.Errorf("the log of %s in allocation %s ended", task, allocID)
			}
			lines := strings.Split(rest+string(frame.Data), "\n")
			rest = lines[len(lines)-1]
			for _, line := range lines[:len(lines)-1] {
				if enough(line) {
					return nil
				}
			}
		case err := <-errs:
			return fmt.Errorf("follow the log of %s in allocation %s: %w", task, allocID, err)
		case <-ctx.Done():
			return fmt.Errorf("follow the log of %s in allocation %s: %w", task, allocID, ctx.Err())
		}
	}
}
