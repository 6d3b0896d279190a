package driver

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/driver/client"
)

// gpuHealth emits task events when a GPU of a task becomes unhealthy, or a claim of it is bypassed, and when that is over.
// The device plugin detects both, and cannot emit task events.
type gpuHealth struct {
	client *client.Client
	logger hclog.Logger
	grants *grants
	tasks  *taskStore
	notify func(cfg *drivers.TaskConfig, annotations map[string]string, format string, args ...any)

	// start starts to watch, with the first task that has a claim: there is a run directory by then.
	start sync.Once
	// wake has a value when there is a task that may have no events yet.
	wake chan struct{}
	// published is the latest problem of each GPU and claim that a task has an event of, by task ID and the GPU's UUID or
	// the claim's ID.
	published map[string]map[string]string
}

// newGPUHealth returns what publishes the health of GPUs. d.client and d.grants are set.
func (d *Driver) newGPUHealth() *gpuHealth {
	return &gpuHealth{client: d.client, logger: d.logger, grants: d.grants, tasks: d.tasks, notify: d.notify,
		wake: make(chan struct{}, 1)}
}

// add starts to publish the health of a task's GPUs.
func (g *gpuHealth) add(h *taskHandle) {
	if !claim.HasTokens(h.cfg.DeviceEnv) {
		return
	}
	g.start.Do(func() { g.client.Go(g.watch) })
	select {
	case g.wake <- struct{}{}:
	default: // a look is due already
	}
}

// watch publishes the health of the tasks' GPUs until the driver ends.
func (g *gpuHealth) watch() {
	runDir := g.grants.config.RunDir
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(runDir)
	}
	if err != nil {
		g.logger.Warn("tasks get no events of unhealthy GPUs: cannot watch the run directory",
			"run_dir", runDir, "error", err)
		return
	}
	for {
		select {
		case <-g.wake:
		case event := <-watcher.Events:
			if filepath.Base(event.Name) != health.FileName {
				continue
			}
		case err := <-watcher.Errors:
			g.logger.Debug("changes of the run directory were lost, so it is looked at now", "error", err)
		case <-g.client.Context().Done():
			return
		}
		g.publish(g.client.Context())
	}
}

// publish emits events of what has changed for each task that runs.
func (g *gpuHealth) publish(ctx context.Context) {
	report, err := health.Read(g.grants.config.RunDir)
	if err != nil {
		g.logger.Warn("cannot read the health of the GPUs", "error", err)
		return
	}
	published := make(map[string]map[string]string)
	for _, h := range g.tasks.all() {
		before := g.published[h.cfg.ID]
		well := len(report.GPUs) == 0 && len(report.Bypassing) == 0 && len(before) == 0
		if well || h.exit() != nil || !claim.HasTokens(h.cfg.DeviceEnv) {
			continue
		}
		claims, err := g.grants.claimsOf(ctx, h)
		if err != nil {
			g.logger.Warn("cannot publish the health of a task's GPUs", "task_id", h.cfg.ID, "error", err)
			published[h.cfg.ID] = before
			continue
		}
		published[h.cfg.ID] = g.publishTo(h, claims, report, before)
	}
	g.published = published
}

// claimsOf are the claims of a task that runs.
func (g *grants) claimsOf(ctx context.Context, h *taskHandle) ([]*claim.Claim, error) {
	ledger, err := g.open()
	if err != nil {
		return nil, err
	}
	return ledger.FromEnv(ctx, h.cfg.DeviceEnv)
}

// publishTo emits events of what has changed for a task, and returns what is published then.
func (g *gpuHealth) publishTo(
	h *taskHandle, claims []*claim.Claim, report health.Report, before map[string]string,
) map[string]string {
	known := make(map[string]string)
	for _, c := range claims {
		if problem := g.publishBypass(h, c, report.Bypassing[c.ID].Problem, before[c.ID]); problem != "" {
			known[c.ID] = problem
		}
		uuid := c.PhysicalGPU()
		if _, said := known[uuid]; said {
			continue
		}
		name := fmt.Sprintf("%s #%d (%s)", c.GPU.Name, c.GPU.Index, uuid)
		annotations := map[string]string{"gpu": uuid, "claim": c.ID}
		condition, bad := report.GPUs[uuid]
		switch {
		case bad && condition.Problem != before[uuid]:
			g.notify(h.cfg, annotations, "GPU %s is unhealthy: %s. The task keeps its claim there; `nomad alloc stop` has it "+
				"placed elsewhere", name, condition.Problem)
		case !bad && before[uuid] != "":
			g.notify(h.cfg, annotations, "GPU %s is healthy again; a program that failed on it has to be restarted", name)
		}
		if bad {
			known[uuid] = condition.Problem
		}
	}
	return known
}

// publishBypass emits an event if a claim of the task is bypassed, or no longer is; an empty problem is none. It returns
// what is published then.
func (g *gpuHealth) publishBypass(h *taskHandle, c *claim.Claim, problem, before string) string {
	annotations := map[string]string{"gpu": c.PhysicalGPU(), "claim": c.ID}
	switch {
	case problem != "" && problem != before:
		g.notify(h.cfg, annotations, "the task is bypassing the limit of its claim %s: %s", c.ID, problem)
	case problem == "" && before != "":
		g.notify(h.cfg, annotations, "the task no longer bypasses the limit of its claim %s", c.ID)
	}
	return problem
}
