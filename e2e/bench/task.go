package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/internal/nomadtest"
)

// taskTimeout is how long a task may take for anything before the measurement is given up.
const taskTimeout = 2 * time.Minute

// benchTask is one task on its way.
type benchTask struct {
	driver *taskDriver
	cfg    *drivers.TaskConfig
	watch  *stopwatch
	// exits is the answer to WaitTask.
	exits <-chan *drivers.ExitResult
	// started: there is something to be removed from the driver.
	started bool
}

// newTask lays out a task's directories and describes the task, both as a Nomad agent would.
func (n *taskNode) newTask(d *taskDriver) (*benchTask, error) {
	n.made++
	allocID := fmt.Sprintf("bbbbbbbb-0000-4000-8000-%012d", n.made)
	cfg := &drivers.TaskConfig{
		ID: allocID + "/stopwatch/00000000", AllocID: allocID, Name: "stopwatch",
		JobID: "bench", JobName: "bench", TaskGroupName: "bench", Namespace: "default",
		AllocDir: filepath.Join(n.dir, "alloc", allocID),
		// What an agent says for a driver whose logs are not collected.
		StdoutPath: os.DevNull, StderrPath: os.DevNull,
		Env: map[string]string{
			"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets",
			"NOMAD_ALLOC_ID": allocID, "NOMAD_TASK_NAME": "stopwatch",
		},
		Resources: nomadtest.Resources(drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 64 << 20}, 100, 64, 0),
	}
	if err := cfg.EncodeConcreteDriverConfig(d.taskConfig); err != nil {
		return nil, err
	}
	dirs := cfg.TaskDir()
	for _, dir := range []string{dirs.LogDir, dirs.LocalDir, dirs.SecretsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	watch, err := newStopwatch(dirs.SharedAllocDir)
	if err != nil {
		return nil, err
	}
	return &benchTask{driver: d, cfg: cfg, watch: watch}, nil
}

// start starts the task and returns how many milliseconds it took until its first instruction.
func (t *benchTask) start() (float64, error) {
	began := now()
	if _, _, err := t.driver.StartTask(t.cfg); err != nil {
		return 0, fmt.Errorf("start it: %w", err)
	}
	t.started = true
	first, err := t.watch.next(taskTimeout)
	return first.millisecondsSince(began), err
}

// wait has the driver say when the task has ended.
func (t *benchTask) wait(ctx context.Context) (err error) {
	t.exits, err = t.driver.WaitTask(ctx, t.cfg.ID)
	return err
}

// end lets the task end and returns how many milliseconds after its last instruction the driver said so.
func (t *benchTask) end() (float64, error) {
	if err := t.watch.release(); err != nil {
		return 0, err
	}
	select {
	case result := <-t.exits:
		known := now()
		if result == nil || !result.Successful() {
			return 0, fmt.Errorf("it ended badly: %+v", result)
		}
		last, err := t.watch.next(taskTimeout)
		return known.millisecondsSince(last), err
	case <-time.After(taskTimeout):
		return 0, errors.New("its end was not noticed")
	}
}

// remove removes the task from the driver and its directories. It may be nil, or half made.
func (t *benchTask) remove() error {
	if t == nil {
		return nil
	}
	t.watch.close()
	if t.started {
		if err := t.driver.DestroyTask(t.cfg.ID, true); err != nil {
			return fmt.Errorf("remove task %s: %w", t.cfg.ID, err)
		}
	}
	return os.RemoveAll(t.cfg.AllocDir)
}
