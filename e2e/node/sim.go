package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Sim is a node's simulated GPUs: a driver root, and the record of what their memory really holds.
type Sim struct {
	// Root is the driver root, as `simgpu root` lays it out.
	Root string
	tool string
}

// NewSim is a simulator whose binaries are those of buildDir/sim, with the driver root dir.
func NewSim(buildDir, dir string) *Sim {
	return &Sim{Root: dir, tool: filepath.Join(buildDir, "sim/bin/simgpu")}
}

// LayOut makes the driver root, for the GPUs of a topology file.
func (s *Sim) LayOut(ctx context.Context, topology string) error {
	cmd := exec.CommandContext(ctx, s.tool, "root", s.Root)
	cmd.Env = append(os.Environ(), "SIMGPU_TOPOLOGY="+topology)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("lay out the simulated driver root %s: %w: %s", s.Root, err, out)
	}
	return nil
}

// Env is the environment in which a process of the host, outside every container, finds these GPUs.
func (s *Sim) Env() []string {
	return []string{
		"SIMGPU_TOPOLOGY=" + filepath.Join(s.Root, "run/simgpu/topology"),
		"SIMGPU_STATE=" + filepath.Join(s.Root, "run/simgpu/state"),
		"SIMGPU_DEV=" + filepath.Join(s.Root, "dev"),
	}
}

// CLI makes a command in dir that is the command tranche on these GPUs, for cli_path in the configuration of
// tranche-runtime, which gives it no environment.
func (s *Sim) CLI(buildDir, dir string) (string, error) {
	file := filepath.Join(dir, "tranche-simulated")
	script := "#!/bin/sh\nexec env '" + strings.Join(s.Env(), "' '") + "' '" + filepath.Join(buildDir, "bin/tranche") + "' \"$@\"\n"
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		return "", fmt.Errorf("make the command tranche for the simulated GPUs: %w", err)
	}
	return file, nil
}

// Run runs the simulator's tool on this node's GPUs and returns what it prints.
func (s *Sim) Run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.tool, args...)
	cmd.Env = append(os.Environ(), s.Env()...)
	out, err := cmd.Output()
	if err != nil {
		detail := ""
		if exit := (&exec.ExitError{}); errors.As(err, &exit) {
			detail = string(exit.Stderr)
		}
		return "", fmt.Errorf("simgpu %s: %w: %s", strings.Join(args, " "), err, detail)
	}
	return string(out), nil
}

// Record is the simulator's account of physical memory: the judge in every test of a limit.
type Record struct {
	Simulated bool            `json:"simulated"`
	GPUs      []RecordGPU     `json:"gpus"`
	Processes []RecordProcess `json:"processes"`
	Groups    []RecordGroup   `json:"groups"`
	// MemoryLimits are those of cgroups.
	MemoryLimits []RecordLimit `json:"memory_limits"`
	MIG          struct {
		GPUs []RecordMIG `json:"gpus"`
	} `json:"mig"`
}

// RecordMIG is a simulated GPU that has MIG, and the instances that it is cut into.
type RecordMIG struct {
	UUID      string `json:"uuid"`
	Mode      bool   `json:"mode"`
	Instances []struct {
		Profile string `json:"profile"`
	} `json:"gpu_instances"`
}

// Profiles are those of the instances that a GPU is cut into.
func (r *Record) Profiles(uuid string) (profiles []string) {
	for _, gpu := range r.MIG.GPUs {
		for _, instance := range gpu.Instances {
			if gpu.UUID == uuid {
				profiles = append(profiles, instance.Profile)
			}
		}
	}
	return profiles
}

// RecordGPU is one simulated GPU and the bytes of it that living processes hold.
type RecordGPU struct {
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	MemoryBytes uint64 `json:"memory_bytes"`
	UsedBytes   uint64 `json:"used_bytes"`
	// BusyNS is GPU time that processes had, and Switches how often the GPU changed from one process to another.
	BusyNS   uint64 `json:"busy_ns"`
	Switches uint64 `json:"switches"`
}

// RecordProcess is one process that uses simulated GPUs.
type RecordProcess struct {
	PID   int    `json:"pid"`
	Group string `json:"group"`
	Alive bool   `json:"alive"`
	GPUs  []struct {
		UUID         string `json:"uuid"`
		Bytes        uint64 `json:"bytes"`
		ContextBytes uint64 `json:"context_bytes"`
		Launches     uint64 `json:"launches"`
	} `json:"gpus"`
	// MPSServer and MPSClient say what the process is to MPS, and MPSServerPID, of a client, which server's it is.
	MPSServer    bool `json:"mps_server"`
	MPSClient    bool `json:"mps_client"`
	MPSServerPID int  `json:"mps_server_pid"`
}

// RecordGroup is what the processes of one container (one PID namespace) or one label hold of one GPU, now and at most
// since the record began or the peak was reset.
type RecordGroup struct {
	Group     string `json:"group"`
	GPUUUID   string `json:"gpu_uuid"`
	Bytes     uint64 `json:"bytes"`
	PeakBytes uint64 `json:"peak_bytes"`
	Processes int    `json:"processes"`
	Launches  uint64 `json:"launches"`
	// BusyNS is the GPU time that its processes had, the dead included, and OverlapNS the time in which they had work ready
	// while the GPU worked for another group.
	BusyNS    uint64 `json:"busy_ns"`
	OverlapNS uint64 `json:"overlap_ns"`
}

// RecordLimit is a cgroup's limit of one GPU's memory, and what is charged to that.
type RecordLimit struct {
	Path    string `json:"cgroup"`
	GPUUUID string `json:"gpu_uuid"`
	Hard    uint64 `json:"hard_bytes"`
	Used    uint64 `json:"bytes"`
}

// Record reads the simulator's record.
func (s *Sim) Record(ctx context.Context) (*Record, error) {
	out, err := s.Run(ctx, "record", "--json")
	if err != nil {
		return nil, err
	}
	record := &Record{}
	if err := json.Unmarshal([]byte(out), record); err != nil {
		return nil, fmt.Errorf("read the simulator's record: %w", err)
	}
	return record, nil
}

// Group returns what one group holds of its GPUs, by UUID.
func (r *Record) Group(key string) map[string]RecordGroup {
	groups := map[string]RecordGroup{}
	for _, g := range r.Groups {
		if g.Group == key {
			groups[g.GPUUUID] = g
		}
	}
	return groups
}

// GroupOf is the simulator's name for the container whose first process is initPID: the inode of its PID namespace, and
// when that process was started, since inodes are used again.
func GroupOf(initPID int) (string, error) {
	namespace, err := PIDNamespace(initPID)
	if err != nil {
		return "", err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", initPID))
	if err != nil {
		return "", fmt.Errorf("start time of process %d: %w", initPID, err)
	}
	// The name in brackets may hold anything; behind it comes field 3, and 22 is the start time (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return "", fmt.Errorf("start time of process %d: /proc says %q", initPID, stat)
	}
	return "pidns:" + namespace + ":" + fields[startTime], nil
}

// PIDNamespace is the inode of a process's PID namespace.
func PIDNamespace(pid int) (string, error) {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return "", fmt.Errorf("PID namespace of process %d: %w", pid, err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), nil
}
