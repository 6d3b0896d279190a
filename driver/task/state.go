package task

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// handleVersion is the version of State; raise it with each change that older drivers cannot read.
const handleVersion = 1

// State is what Nomad keeps of a task across restarts of the plugin and the agent, also of another version: the names of its
// fields, and of theirs, must not change.
type State struct {
	ContainerID string
	PID         uint32
	Shim        ShimEndpoint
	StopSignal  string
	StartedAt   time.Time
	// Init is the container's first process, ShimProcess its shim, Cgroup where its processes are: they are needed when
	// neither containerd nor the shim answers.
	Init        proc.ID
	ShimProcess proc.ID
	Cgroup      string
}

// NewState returns the state of a task whose first process has been created. The error says what of it is not known: some
// runtimes have no process on this machine, or no shim that can be found.
func NewState(containerID string, pid uint32) (State, error) {
	state := State{ContainerID: containerID, PID: pid, Cgroup: cgroup.OfContainer(int(pid))}
	var errInit, errShim error
	state.Init, errInit = proc.Find(int(pid))
	state.ShimProcess, state.Shim, errShim = findShim(int(pid))
	return state, errors.Join(errInit, errShim)
}

// ReadState returns the state that Nomad kept of a task.
func ReadState(handle *drivers.TaskHandle) (State, error) {
	if handle.Version != handleVersion {
		return State{}, fmt.Errorf("its state is of version %d, this driver knows version %d", handle.Version, handleVersion)
	}
	var state State
	if err := handle.GetDriverState(&state); err != nil {
		return State{}, fmt.Errorf("read its state: %w", err)
	}
	state.identify()
	return state, nil
}

// identify completes the processes that a driver up to 0.1 wrote down, which left out the boot: an ID and a start time alone
// may be another process's by now. A process is the task's if it is where only the task's can be: the container's first one
// in the container's cgroup, its shim in the directory with the shim's address. Others stay without a boot, and so count as
// ended.
func (s *State) identify() {
	if s.Init.BootID == "" && s.Cgroup != "" && cgroup.HasProcess(s.Cgroup, s.Init.PID) {
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

// OfAnotherBoot reports whether the machine has booted since the task started, so that nothing of it can be left.
func (s *State) OfAnotherBoot() bool {
	boot, err := proc.BootID()
	return err == nil && s.Init.BootID != "" && s.Init.BootID != boot
}
