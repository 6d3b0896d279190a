//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// The GPUs of the topology mixed8.conf, by their index.
var mixedGPUs = []string{
	"GPU-51d40f7e-a140-4e6b-9f3d-5a1e00000000", "GPU-51d40f7e-a140-4e6b-9f3d-5a1e00000001",
	"GPU-51d40f7e-0100-4e6b-9f3d-5a1e00000002", "GPU-51d40f7e-0100-4e6b-9f3d-5a1e00000003",
	"GPU-51d40f7e-0200-4e6b-9f3d-5a1e00000004", "GPU-51d40f7e-0200-4e6b-9f3d-5a1e00000005",
	"GPU-51d40f7e-0200-4e6b-9f3d-5a1e00000006", "GPU-51d40f7e-0004-4e6b-9f3d-5a1e00000007",
}

// startMixed starts a node whose eight GPUs are shared as examples/mixed-agent.hcl says. MIG is off at first, and devices are
// unhealthy until it is on and its instances are made.
func startMixed(t *testing.T, change ...func(*node.Config)) *node.Node {
	t.Helper()
	text := readFile(t, filepath.Join(build, "../examples/mixed-agent.hcl"))
	block := regexp.MustCompile(`(?s)plugin "nomad-device-tranche" \{\n  config \{\n(.*)\n  \}\n\}`).FindStringSubmatch(text)
	must.SliceLen(t, 2, block)
	run, err := os.MkdirTemp("/run", "tranche-")
	must.NoError(t, err)
	n := startNode(t, append([]func(*node.Config){func(c *node.Config) {
		c.Topology = filepath.Join(build, "../e2e/simgpu/topologies/mixed8.conf")
		c.DeviceConfig = block[1] + "\n"
		c.MIG, c.RunAt = true, run
	}}, change...)...)
	_, err = n.WaitNode(deadline(t), allHealthy)
	must.NoError(t, err)
	return n
}

func allHealthy(info *api.Node) bool {
	for _, group := range info.NodeResources.Devices {
		for _, device := range group.Instances {
			if !device.Healthy {
				return false
			}
		}
	}
	return true
}

// runExample runs an example as it stands and waits until so many of its allocations run.
func runExample(t *testing.T, n *node.Node, name string, count int) []*api.AllocationListStub {
	t.Helper()
	job, err := n.Job(filepath.Join(build, "../examples", name+".nomad.hcl"))
	must.NoError(t, err)
	eval, err := n.Run(deadline(t), job)
	must.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			_ = n.StopJob(deadline(t), name)
		}
	})
	must.Eq(t, "", eval.BlockedEval, must.Sprintf("%s is not placed: %+v", name, eval.FailedTGAllocs))
	return allRunning(t, n, name, count)
}

// allRunning waits until so many allocations of a job run, and fails at once when one has ended.
func allRunning(t *testing.T, n *node.Node, job string, count int) (running []*api.AllocationListStub) {
	t.Helper()
	var ended *api.AllocationListStub
	_, err := n.WaitAllocs(deadline(t), job, func(all []*api.AllocationListStub) bool {
		running = nil
		for _, a := range all {
			if a.DesiredStatus != api.AllocDesiredStatusRun {
				continue // of a run before this one
			}
			switch a.ClientStatus {
			case api.AllocClientStatusRunning:
				running = append(running, a)
			case api.AllocClientStatusFailed, api.AllocClientStatusComplete, api.AllocClientStatusLost:
				ended = a
			}
		}
		return len(running) == count || ended != nil
	})
	must.NoError(t, err, must.Sprintf("waiting for %d allocations of %s", count, job))
	if ended != nil {
		t.Fatalf("job %s does not stay: %s", job, node.Story(ended))
	}
	return running
}

// probeLine is what gpu-probe writes.
type probeLine struct {
	Event            string `json:"event"`
	Name             string `json:"name"`
	GPUs             int    `json:"gpus"`
	CUDeviceTotalMem uint64 `json:"cuDeviceTotalMem"`
	NVML             struct {
		Total uint64 `json:"total"`
	} `json:"nvml"`
	Taken uint64 `json:"taken"`
}

// probed is what the gpu-probe of an example has said by the time that it computes, by event.
func probed(t *testing.T, n *node.Node, allocID string) map[string]probeLine {
	t.Helper()
	said := map[string]probeLine{}
	var failure error
	err := n.Lines(deadline(t), allocID, "probe", func(text string) bool {
		var line probeLine
		if failure = json.Unmarshal([]byte(text), &line); failure == nil && line.Event == "error" {
			failure = fmt.Errorf("the probe says %s", text)
		}
		said[line.Event] = line
		return failure != nil || line.Event == "computing"
	})
	must.NoError(t, err)
	must.NoError(t, failure)
	return said
}

// assigned are the devices of an example's allocation, as Nomad has them.
func assigned(t *testing.T, n *node.Node, allocID string) *api.AllocatedDeviceResource {
	t.Helper()
	info, _, err := n.Agent.API.Allocations().Info(allocID, nil)
	must.NoError(t, err)
	devices := info.AllocatedResources.Tasks["probe"].Devices
	must.Len(t, 1, devices)
	return devices[0]
}

// containerEnv is a variable in the environment of a container's first process.
func containerEnv(t *testing.T, initPID int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", initPID))
	must.NoError(t, err)
	for pair := range strings.SplitSeq(string(text), "\x00") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// endsClean stops jobs, after which nothing of theirs is left: no container has a claim, no process has memory.
func endsClean(t *testing.T, n *node.Node, jobs ...string) {
	t.Helper()
	for _, job := range jobs {
		must.NoError(t, n.StopJob(deadline(t), job))
	}
	must.NoError(t, until(deadline(t), func() (bool, error) {
		living, err := livingClaims(deadline(t), n)
		return len(living) == 0, err
	}))
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	for _, g := range record.GPUs {
		if g.UUID == mixedGPUs[2] {
			must.LessEq(t, 300*mib, g.UsedBytes, must.Sprint("more than the context of MPS's server, which stays"))
			continue
		}
		must.Zero(t, g.UsedBytes, must.Sprintf("of GPU %s", g.UUID))
	}
}

// livingClaims maps the IDs of claims that a container has to their slices.
func livingClaims(ctx context.Context, n *node.Node) (map[string][]string, error) {
	all, err := n.AllClaims(ctx)
	living := map[string][]string{}
	for _, c := range all {
		if c.Container != nil && c.Released.IsZero() {
			living[c.ID] = c.Slices
		}
	}
	return living, err
}
