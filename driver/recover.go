package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// recoverTimeout is how long RecoverTask waits for containerd before it takes the task back unseen.
const recoverTimeout = 5 * time.Second

// RecoverTask takes a task back after a restart of the plugin or the agent: it goes on to run, and if it has ended
// meanwhile its exit result is there.
//
// An unavailable containerd is no reason to give the task up, since its shim runs on: the task is taken back
// as running, and what became of it comes out when containerd is back.
func (d *Driver) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return errors.New("recover a task: Nomad handed over nothing to recover")
	}
	if h, ok := d.tasks.get(handle.Config.ID); ok {
		h.noteQuery()()
		return nil
	}
	if handle.Version != handleVersion {
		return fmt.Errorf("recover task %s: its state is of version %d, this driver knows version %d",
			handle.Config.ID, handle.Version, handleVersion)
	}
	var state taskState
	if err := handle.GetDriverState(&state); err != nil {
		return fmt.Errorf("recover task %s: read its state: %w", handle.Config.ID, err)
	}
	state.identify()
	d.agents.see(handle.Config)
	h := newTaskHandle(d, handle.Config, state)
	ctx, cancel := context.WithTimeout(d.client.Context(), recoverTimeout)
	defer cancel()
	if _, err := h.load(ctx); errdefs.IsNotFound(err) {
		// After a reboot the record of the container is there and its processes are not; after the end of its shim
		// it may be the other way round.
		if !state.ofAnotherBoot() {
			d.killRest(state)
		}
		d.discard(state.ContainerID)
		return fmt.Errorf("recover task %s: containerd has no process for container %s", handle.Config.ID,
			state.ContainerID)
	} else if err != nil {
		d.logger.Warn("containerd does not answer; taking the task back as running", "container", state.ContainerID,
			"error", err)
		h.unseen = true
	}
	d.adopt(h)
	return nil
}

// identify completes the processes that a driver up to 0.1 wrote down, which left out the boot: an ID and a start time alone
// may be a stranger's by now. A process is the task's if it is where only the task's can be: the container's first one in
// the container's cgroup, its shim in the directory with the shim's address. Others stay without a boot, and so count as
// ended.
func (s *taskState) identify() {
	inCgroup := s.Cgroup != "" && cgroup.HasProcess(s.Cgroup, s.Init.PID)
	if s.Init.BootID == "" && inCgroup {
		s.Init = withBoot(s.Init)
	}
	at, err := readEndpoint(fmt.Sprintf("/proc/%d/cwd", s.ShimProcess.PID))
	if s.ShimProcess.BootID == "" && err == nil && at.Address == s.Shim.Address {
		s.ShimProcess = withBoot(s.ShimProcess)
	}
}

// withBoot returns a process with this boot, if one with its ID and start time runs in it.
func withBoot(p proc.ID) proc.ID {
	now, err := proc.Find(p.PID)
	if err != nil || now.StartTime != p.StartTime {
		return p
	}
	return now
}

// ofAnotherBoot says whether the machine has booted since the task started, so that nothing of it can be left.
func (s *taskState) ofAnotherBoot() bool {
	boot, err := proc.BootID()
	return err == nil && s.Init.BootID != "" && s.Init.BootID != boot
}
