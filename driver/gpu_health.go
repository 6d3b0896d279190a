package driver

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
)

// gpuHealth tells tasks when a GPU of theirs is no longer fit for work, or a claim of theirs is bypassed, and when that is
// over. The device plugin knows, and cannot reach them.
type gpuHealth struct {
	// watch starts to watch, with the first task that has a claim: there is a run directory by then.
	watch sync.Once
	// tasks has a value when there is a task to tell that may not have been told.
	tasks chan struct{}
	// told is the problem that each task was told last of each GPU and claim, by task ID and the GPU's UUID or the claim's ID.
	told map[string]map[string]string
}

// healthOf has a task told of its GPUs' health.
func (d *Driver) healthOf(h *taskHandle) {
	if !holdsClaims(h.cfg.DeviceEnv) {
		return
	}
	d.health.watch.Do(func() { d.client.Go(d.watchHealth) })
	select {
	case d.health.tasks <- struct{}{}:
	default: // it will be looked anyway
	}
}

// watchHealth tells tasks of their GPUs' health until the driver ends.
func (d *Driver) watchHealth() {
	runDir := d.grants.config.RunDir
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(runDir)
	}
	if err != nil {
		d.logger.Warn("tasks will not be told when their GPUs are unfit for work: cannot watch the run directory",
			"run_dir", runDir, "error", err)
		return
	}
	for {
		select {
		case <-d.health.tasks:
		case event := <-watcher.Events:
			if filepath.Base(event.Name) != health.FileName {
				continue
			}
		case err := <-watcher.Errors:
			d.logger.Debug("changes of the run directory were lost, so it is looked at now", "error", err)
		case <-d.ctx.Done():
			return
		}
		d.tellHealth(d.ctx)
	}
}

// tellHealth tells each task that runs what has changed of its GPUs.
func (d *Driver) tellHealth(ctx context.Context) {
	report, err := health.Read(d.grants.config.RunDir)
	if err != nil {
		d.logger.Warn("cannot tell tasks of their GPUs' health", "error", err)
		return
	}
	told := make(map[string]map[string]string)
	for _, h := range d.tasks.all() {
		before := d.health.told[h.cfg.ID]
		well := len(report.GPUs) == 0 && len(report.Bypassing) == 0 && len(before) == 0
		if well || h.exit() != nil || !holdsClaims(h.cfg.DeviceEnv) {
			continue
		}
		claims, err := d.grants.claimsOf(ctx, h)
		if err != nil {
			d.logger.Warn("cannot tell a task of its GPUs' health", "task_id", h.cfg.ID, "error", err)
			told[h.cfg.ID] = before
			continue
		}
		told[h.cfg.ID] = d.tellTask(h, claims, report, before)
	}
	d.health.told = told
}

// claimsOf are the claims of a task that runs.
func (g *grants) claimsOf(ctx context.Context, h *taskHandle) ([]*claim.Claim, error) {
	ledger, err := g.open()
	if err != nil {
		return nil, err
	}
	return ledger.FromEnv(ctx, h.cfg.DeviceEnv)
}

// tellTask tells a task what is new of its GPUs and claims. It returns what the task knows then.
func (d *Driver) tellTask(
	h *taskHandle, claims []*claim.Claim, report health.Report, before map[string]string,
) map[string]string {
	known := make(map[string]string)
	for _, c := range claims {
		if problem := d.tellBypassing(h, c, report.Bypassing[c.ID].Problem, before[c.ID]); problem != "" {
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
			d.say(h.cfg, annotations, "GPU %s is not fit for work: %s. The task keeps its claim there; `nomad alloc stop` has it "+
				"placed elsewhere", name, condition.Problem)
		case !bad && before[uuid] != "":
			d.say(h.cfg, annotations, "GPU %s is fit for work again; a program that failed on it has to be restarted", name)
		}
		if bad {
			known[uuid] = condition.Problem
		}
	}
	return known
}

// tellBypassing tells a task that a claim of its is bypassed, or no longer is; a problem that is empty is none. It returns
// what the task knows then.
func (d *Driver) tellBypassing(h *taskHandle, c *claim.Claim, problem, before string) string {
	annotations := map[string]string{"gpu": c.PhysicalGPU(), "claim": c.ID}
	switch {
	case problem != "" && problem != before:
		d.say(h.cfg, annotations, "the task is bypassing the limit of its claim %s: %s", c.ID, problem)
	case problem == "" && before != "":
		d.say(h.cfg, annotations, "the task no longer bypasses the limit of its claim %s", c.ID)
	}
	return problem
}
