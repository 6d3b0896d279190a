package gpu

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/governor/status"
)

// HealthConfig is what Health needs.
type HealthConfig struct {
	// Client runs the watch until the driver ends.
	Client *client.Client
	Logger hclog.Logger
	Claims *Claims
	// Running returns the tasks that run.
	Running func() []*drivers.TaskConfig
	// Notify emits a task event.
	Notify func(cfg *drivers.TaskConfig, annotations map[string]string, format string, args ...any)
	// Kill kills a task.
	Kill func(taskID string) error
}

// Health emits task events when a GPU of a task becomes unhealthy, the task has memory that a claim does not count, or a claim has
// been idle for too long, and when that is over, and likewise for processes that use a GPU outside of its turns. It ends a task with
// such memory or processes if the operator wants that. The device plugin, the governor and the agent detect these, and cannot do this.
type Health struct {
	HealthConfig

	// start starts to watch, with the first task that has a claim: there is a run directory by then.
	start sync.Once
	// wake has a value when there is a task that may have no events yet.
	wake chan struct{}
	// published is the latest problem of each GPU and claim that a task has an event of, by task ID and the GPU's UUID or
	// the claim's ID, with turnsKey before it for its processes that have not joined, and idleKey for its being idle.
	published map[string]map[string]string
	// outside are those processes, by claim ID.
	outside map[string]outside
	// idle are the claims that have been idle for too long.
	idle idle.Report
}

const (
	turnsKey = "turns of "
	idleKey  = "idleness of "
)

// NewHealth returns what publishes the health of GPUs. It does nothing before Add.
func NewHealth(config HealthConfig) *Health {
	return &Health{HealthConfig: config, wake: make(chan struct{}, 1)}
}

// Add starts to publish the health of a task's GPUs. Running returns the task by now.
func (h *Health) Add(cfg *drivers.TaskConfig) {
	if !claim.HasTokens(cfg.DeviceEnv) {
		return
	}
	h.start.Do(func() { h.Client.Go(h.watch) })
	select {
	case h.wake <- struct{}{}:
	default: // Publishing is due already.
	}
}

// watch publishes the health of the tasks' GPUs until the driver ends.
func (h *Health) watch() {
	runDir := h.Claims.config.RunDir
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		err = watcher.Add(runDir)
	}
	if err == nil {
		var turns string
		if turns, err = governorDir(runDir); err == nil {
			err = watcher.Add(turns)
		}
	}
	if err != nil {
		h.Logger.Warn("tasks get no events of unhealthy GPUs: cannot watch the run directory",
			"run_dir", runDir, "error", err)
		return
	}
	for {
		select {
		case <-h.wake:
		case event := <-watcher.Events:
			switch filepath.Base(event.Name) {
			case health.FileName, idle.FileName:
			case status.FileName: // once a second
				if maps.Equal(h.outside, h.notJoined()) {
					continue
				}
			default:
				continue
			}
		case err := <-watcher.Errors:
			h.Logger.Debug("changes of the run directory were lost; reading the health of the GPUs now", "error", err)
		case <-h.Client.Context().Done():
			return
		}
		h.publish(h.Client.Context())
	}
}

// publish emits events of what has changed for each task that runs.
func (h *Health) publish(ctx context.Context) {
	report, err := health.Read(h.Claims.config.RunDir)
	if err != nil {
		h.Logger.Warn("cannot read the health of the GPUs", "error", err)
		return
	}
	h.outside = h.notJoined()
	h.readIdle()
	published := make(map[string]map[string]string)
	for _, cfg := range h.Running() {
		before := h.published[cfg.ID]
		well := len(report.GPUs) == 0 && len(report.Uncounted) == 0 && len(h.outside) == 0 && len(h.idle.Claims) == 0 && len(before) == 0
		if well || !claim.HasTokens(cfg.DeviceEnv) {
			continue
		}
		claims, err := h.Claims.of(ctx, cfg)
		if err != nil {
			h.Logger.Warn("cannot publish the health of a task's GPUs", "task_id", cfg.ID, "error", err)
			published[cfg.ID] = before
			continue
		}
		published[cfg.ID] = h.publishTo(cfg, claims, report, before)
	}
	h.published = published
}

// of returns the claims of a task that runs.
func (c *Claims) of(ctx context.Context, cfg *drivers.TaskConfig) ([]*claim.Claim, error) {
	ledger, err := c.open()
	if err != nil {
		return nil, err
	}
	return ledger.FromEnv(ctx, cfg.DeviceEnv)
}

// publishTo emits events of what has changed for a task, and returns what is published then.
func (h *Health) publishTo(
	cfg *drivers.TaskConfig, claims []*claim.Claim, report health.Report, before map[string]string,
) map[string]string {
	known := make(map[string]string)
	for _, c := range claims {
		if problem := h.publishUncounted(cfg, c, report, before[c.ID]); problem != "" {
			known[c.ID] = problem
		}
		if outside := h.publishNotJoined(cfg, c, h.outside[c.ID], before[turnsKey+c.ID]); outside != "" {
			known[turnsKey+c.ID] = outside
		}
		if unused := h.publishIdle(cfg, c, before[idleKey+c.ID]); unused != "" {
			known[idleKey+c.ID] = unused
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
			h.Notify(cfg, annotations, "GPU %s is unhealthy: %s. The task keeps its claim there; `nomad alloc stop` has it "+
				"placed elsewhere", name, condition.Problem)
		case !bad && before[uuid] != "":
			h.Notify(cfg, annotations, "GPU %s is healthy again; a program that failed on it has to be restarted", name)
		}
		if bad {
			known[uuid] = condition.Problem
		}
	}
	return known
}

// publishUncounted emits an event if the task has memory that a claim does not count, or no longer has; an empty problem is
// none. It returns what is published then.
func (h *Health) publishUncounted(cfg *drivers.TaskConfig, c *claim.Claim, report health.Report, before string) (problem string) {
	uncounted, found := report.Of(c)
	if found {
		problem = uncounted.Problem
	}
	annotations := map[string]string{"gpu": c.PhysicalGPU(), "claim": c.ID}
	switch {
	case problem != "" && problem != before:
		h.Notify(cfg, annotations, "the task uses GPU memory that its claim %s does not count: %s", c.ID, problem)
		if uncounted.End {
			h.end(cfg, annotations, `uncounted_memory = "end"`)
		}
	case problem == "" && before != "":
		h.Notify(cfg, annotations, "the claim %s counts all GPU memory of the task again", c.ID)
	}
	return problem
}

// end ends a task for what was published last, as an option of the device plugin says.
func (h *Health) end(cfg *drivers.TaskConfig, annotations map[string]string, option string) {
	if err := h.Kill(cfg.ID); err != nil {
		h.Logger.Warn("cannot end a task as the device plugin's configuration says", "option", option, "task_id", cfg.ID, "error", err)
		return
	}
	h.Notify(cfg, annotations, "the task was ended for that, as the device plugin's configuration says (%s)", option)
}
