//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/runtime/mpsdir"
)

// TestMPSNamespaces covers MPS v3 on a simulated driver of version 615: the driver limits the memory of tasks behind an MPS control
// daemon, also of programs that no library in the container could limit, and each has a namespace of its own.
func TestMPSNamespaces(t *testing.T) {
	run, err := os.MkdirTemp("/run", "tranche-") // names of sockets are short
	must.NoError(t, err)
	n := startNode(t, r615, func(c *node.Config) {
		c.DeviceConfig, c.RunAt = `gpu "index:1" { mode = "mps" }`+"\n", run
	})
	_, err = n.WaitNode(deadline(t), allHealthy)
	must.NoError(t, err)
	img, err := aroundImage()
	must.NoError(t, err)
	must.NoError(t, n.ImportImage(deadline(t), around, img))
	for job, slices := range map[string]int{"small": 1, "large": 2} {
		start(t, n, task{job: job, image: around, command: "around", args: []string{driverLibrary}, devices: []string{onGPU(slices, 1)}})
	}
	for job, slices := range map[string]uint64{"small": 1, "large": 2} {
		alloc := running(t, n, job)
		saysLine(t, n, alloc.ID, "took ")
		mustHoldExactly(t, n, alloc.ID, slices<<30)
		mustShowUse(t, n, alloc.ID, slices<<30)
		claims, err := n.Claims(deadline(t), alloc.ID, "t")
		must.NoError(t, err)
		mustBeInNamespace(t, n, alloc.ID, claims[0])
	}
	for _, job := range []string{"small", "large"} {
		must.NoError(t, n.StopJob(deadline(t), job))
	}
}

// mustBeInNamespace fails the test unless an allocation's program is a client in the namespace of its claim, whose socket is all
// that the container has of the daemon.
func mustBeInNamespace(t *testing.T, n *node.Node, allocID string, c *claim.Claim) {
	t.Helper()
	init, err := n.InitPID(deadline(t), allocID, "t")
	must.NoError(t, err)
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	client := false
	for _, process := range record.Processes {
		client = client || process.PID == init && process.MPSClient
	}
	must.True(t, client, must.Sprint("it computes without MPS"))
	pipes := filepath.Join("/proc", strconv.Itoa(init), "root/tmp/nvidia-mps")
	entries, err := os.ReadDir(pipes)
	must.NoError(t, err)
	must.Len(t, 1, entries)
	own, err := os.Stat(filepath.Join(pipes, "control"))
	must.NoError(t, err)
	socket, err := os.Stat(filepath.Join(mpsdir.Of(n.RunDir(), c.PhysicalGPU()), mpsdir.Namespaces, c.ID, mpsdir.Control))
	must.NoError(t, err)
	must.True(t, os.SameFile(own, socket))
	must.Eq(t, "/tmp/nvidia-mps", containerEnv(t, init, "CUDA_MPS_PIPE_DIRECTORY"))
	must.Eq(t, "", containerEnv(t, init, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"))
}
