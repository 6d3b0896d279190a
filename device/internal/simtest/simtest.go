// Package simtest creates driver roots with simulated GPUs for tests. It must not be used outside tests.
package simtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// The GPUs of the topology h200x2.conf.
const (
	H200UUID0    = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000"
	H200UUID1    = "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000001"
	MemoryBytes  = 143771 << 20
	ContextBytes = 300 << 20
)

// Node is a driver root with the simulated GPUs of one test.
type Node struct {
	// DriverRoot is the directory tree with the simulated driver.
	DriverRoot string

	tool string
}

// H200x2 creates a node with two simulated H200 GPUs: see New.
func H200x2(t *testing.T) *Node {
	t.Helper()
	return New(t, "h200x2.conf")
}

// New creates a node with the simulated GPUs of a topology, and sets the environment by which the simulated driver finds them. The
// driver reads it once per process: see InProcess.
func New(t *testing.T, topology string) *Node {
	t.Helper()
	source := moduleRoot(t)
	for _, built := range []string{"bin/simgpu", "lib/libcuda.so.1", "lib/libnvidia-ml.so.1"} {
		if _, err := os.Stat(filepath.Join(source, "build/sim", built)); err != nil {
			t.Skipf("the simulated GPU is not built: %v", err)
		}
	}
	tool := filepath.Join(source, "build/sim/bin/simgpu")
	root := filepath.Join(t.TempDir(), "root")
	node := &Node{DriverRoot: root, tool: tool}
	t.Setenv("SIMGPU_TOPOLOGY", filepath.Join(source, "e2e/simgpu/topologies", topology))
	node.Run(t, "root", root)
	t.Setenv("SIMGPU_TOPOLOGY", filepath.Join(root, "run/simgpu/topology"))
	t.Setenv("SIMGPU_STATE", filepath.Join(root, "run/simgpu/state"))
	t.Setenv("SIMGPU_DEV", filepath.Join(root, "dev"))
	return node
}

// Run runs the simulator's tool and returns what it printed.
func (n *Node) Run(t *testing.T, args ...string) []byte {
	t.Helper()
	var stderr strings.Builder
	command := exec.CommandContext(t.Context(), n.tool, args...)
	command.Stderr = &stderr
	output, err := command.Output()
	must.NoError(t, err, must.Sprintf("simgpu %v: %s", args, stderr.String()))
	return output
}

// UsedBytes returns the used memory of a GPU by the simulator's record.
func (n *Node) UsedBytes(t *testing.T, uuid string) uint64 {
	t.Helper()
	var record struct {
		GPUs []struct {
			UUID      string `json:"uuid"`
			UsedBytes uint64 `json:"used_bytes"`
		} `json:"gpus"`
	}
	must.NoError(t, json.Unmarshal(n.Run(t, "record", "--json"), &record))
	for _, gpu := range record.GPUs {
		if gpu.UUID == uuid {
			return gpu.UsedBytes
		}
	}
	t.Fatalf("the simulator has no GPU %s", uuid)
	return 0
}

// moduleRoot returns the directory of go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	must.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		must.NotEq(t, dir, parent, must.Sprint("there is no go.mod above the test"))
		dir = parent
	}
}
