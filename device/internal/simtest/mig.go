package simtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// MIG is the simulator's record of MIG modes and instances.
type MIG struct {
	GPUs   []MIGGPU   `json:"gpus"`
	Events []MIGEvent `json:"events"`
}

// MIGGPU is a GPU that supports MIG.
type MIGGPU struct {
	UUID      string        `json:"uuid"`
	Mode      bool          `json:"mode"`
	Pending   bool          `json:"pending"`
	Instances []GPUInstance `json:"gpu_instances"`
}

// GPUInstance is a GPU instance that exists.
type GPUInstance struct {
	ID          int               `json:"id"`
	Profile     string            `json:"profile"`
	ProfileID   int               `json:"profile_id"`
	Start       int               `json:"start"`
	Size        int               `json:"size"`
	MemoryBytes uint64            `json:"memory_bytes"`
	UsedBytes   uint64            `json:"used_bytes"`
	CreatedNS   uint64            `json:"created_ns"`
	Compute     []ComputeInstance `json:"compute_instances"`
}

// ComputeInstance is a compute instance, which is a MIG device, and the processes that have memory on it.
type ComputeInstance struct {
	ID        int    `json:"id"`
	UUID      string `json:"uuid"`
	Name      string `json:"name"`
	Start     int    `json:"start"`
	Size      int    `json:"size"`
	SMCount   int    `json:"sm_count"`
	CreatedNS uint64 `json:"created_ns"`
	Processes []struct {
		PID   int    `json:"pid"`
		NSPID int    `json:"nspid"`
		Bytes uint64 `json:"bytes"`
	} `json:"processes"`
}

// MIGEvent is a change: "gi-created", "gi-destroyed", "ci-created", "ci-destroyed", "mode", or "reloaded". Times are
// CLOCK_MONOTONIC.
type MIGEvent struct {
	Serial    uint64 `json:"serial"`
	TimeNS    uint64 `json:"time_ns"`
	What      string `json:"what"`
	PID       int    `json:"pid"`
	GPUUUID   string `json:"gpu_uuid"`
	Mode      bool   `json:"mode"`
	GI        int    `json:"gi"`
	CI        int    `json:"ci"`
	Profile   string `json:"profile"`
	Start     int    `json:"start"`
	Size      int    `json:"size"`
	PeakBytes uint64 `json:"peak_bytes"`
}

// MIG reads the simulator's record of modes and instances.
func (n *Node) MIG(t *testing.T) MIG {
	t.Helper()
	var record struct {
		MIG MIG `json:"mig"`
	}
	must.NoError(t, json.Unmarshal(n.Run(t, "record", "--json"), &record))
	return record.MIG
}

// SMI runs the simulated nvidia-smi, as an administrator would on a node with a plugin, and returns its output.
func (n *Node) SMI(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), n.SMIPath(), args...)
	command.Env = n.SMIEnv()
	output, err := command.CombinedOutput()
	must.NoError(t, err, must.Sprintf("nvidia-smi %v: %s", args, output))
	return string(output)
}

// SMIPath returns the path of the simulated nvidia-smi.
func (n *Node) SMIPath() string { return filepath.Join(filepath.Dir(n.tool), "nvidia-smi") }

// SMIEnv returns the environment that the simulated nvidia-smi needs.
func (n *Node) SMIEnv() []string {
	return append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(n.tool, "../../lib"))
}
