//go:build e2e

// Package e2e tests the way of one job through real Nomad, containerd and runc. The GPUs are simulated, and the
// simulator's record of physical memory is the judge of every limit.
package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

const (
	mib        = 1 << 20
	gib        = 1 << 30
	probeImage = "tranche.local/gpu-probe:demo"
	churnImage = "tranche.local/churn:test"
)

// build is the repository's build folder.
var build = os.Getenv("TRANCHE_BUILD")

func TestMain(m *testing.M) {
	node.RuntimeMain()
	if build == "" || os.Getenv("TRANCHE_SANDBOX") == "" {
		fmt.Fprintln(os.Stderr, "run these tests with: make e2e")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// deadline is how long a single test may wait for what it expects: far more than it takes, since machines are noisy.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// startNode starts a node for one test and stops it afterwards. Its logs stay in build/e2e if the test failed.
func startNode(t *testing.T, change ...func(*node.Config)) *node.Node {
	t.Helper()
	dir := filepath.Join(build, "e2e", strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")))
	must.NoError(t, os.RemoveAll(dir))
	config := node.Config{
		Dir: dir, BuildDir: build, NomadBinary: filepath.Join(build, "tools/nomad"),
		Topology: filepath.Join(build, "../e2e/simgpu/topologies/h200x2.conf"),
	}
	for _, c := range change {
		c(&config)
	}
	n, err := node.Start(deadline(t), config)
	must.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		must.NoError(t, n.Stop(ctx))
		if t.Failed() {
			t.Logf("the node's logs are in %s", dir)
		} else {
			must.NoError(t, os.RemoveAll(dir))
		}
	})
	importProgram(t, n, probeImage, "gpu-probe")
	return n
}

func importProgram(t *testing.T, n *node.Node, ref, program string) {
	t.Helper()
	img, err := images.Program(filepath.Join(build, "e2e", program))
	must.NoError(t, err)
	must.NoError(t, n.ImportImage(deadline(t), ref, img))
}

// task is a jobspec of one task in the shapes that the tests need.
type task struct {
	job, image, command string
	// driver is containerd unless stated.
	driver  string
	args    []string
	jobType string
	count   int
	// devices are the bodies of blocks `device "nvidia/slice"`, or of the type that deviceType names.
	devices    []string
	deviceType string
	// taskExtra, configExtra and groupExtra are further lines for the blocks.
	taskExtra, configExtra, groupExtra string
	memoryMiB                          int
}

// anyGPU is a device block's body that asks for n slices of whichever GPU, onGPU of the one with an index.
func anyGPU(n int) string { return fmt.Sprintf("count = %d", n) }

func onGPU(n int, gpu int) string {
	return fmt.Sprintf("count = %d\nconstraint {\n attribute = \"${device.attr.index}\"\n value = \"%d\"\n}", n, gpu)
}

func (s task) hcl() string {
	if s.image == "" {
		s.image = probeImage
	}
	if s.driver == "" {
		s.driver = "containerd"
	}
	if s.jobType == "" {
		s.jobType = "service"
	}
	if s.memoryMiB == 0 {
		s.memoryMiB = 128
	}
	if s.count == 0 {
		s.count = 1
	}
	var devices, args strings.Builder
	for _, d := range s.devices {
		fmt.Fprintf(&devices, "device %q {\n%s\n}\n", cmp.Or(s.deviceType, "nvidia/slice"), d)
	}
	for i, a := range s.args {
		if i > 0 {
			args.WriteString(", ")
		}
		fmt.Fprintf(&args, "%q", a)
	}
	command := ""
	if s.command != "" {
		command = fmt.Sprintf("command = %q\nargs = [%s]", s.command, args.String())
	}
	return fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    count = %d
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    %s
    task "t" {
      driver = %q
      %s
      config {
        image = %q
        %s
        %s
      }
      resources {
        cpu    = 50
        memory = %d
        %s
      }
    }
  }
}
`, s.job, s.jobType, s.count, s.groupExtra, s.driver, s.taskExtra, s.image, command, s.configExtra, s.memoryMiB, devices.String())
}

// start registers a job and returns what its evaluation said.
func start(t *testing.T, n *node.Node, s task) *api.Evaluation {
	t.Helper()
	job, err := n.ParseJob(s.hcl())
	must.NoError(t, err, must.Sprint(s.hcl()))
	eval, err := n.Run(deadline(t), job)
	must.NoError(t, err)
	return eval
}

// running waits until the job runs.
func running(t *testing.T, n *node.Node, job string) *api.AllocationListStub {
	t.Helper()
	alloc, err := n.WaitStatus(deadline(t), job, "running")
	must.NoError(t, err)
	return alloc
}

// saysLine waits until the task writes a line that holds the text, and returns it.
func saysLine(t *testing.T, n *node.Node, allocID, text string) string {
	t.Helper()
	var found string
	err := n.Lines(deadline(t), allocID, "t", func(line string) bool {
		found = line
		return strings.Contains(line, text)
	})
	must.NoError(t, err, must.Sprintf("waiting for %q", text))
	return found
}

// failsWith waits until the job's allocation has failed and checks that its story, which `nomad alloc status` shows, says why.
func failsWith(t *testing.T, n *node.Node, job string, want ...string) {
	t.Helper()
	alloc, err := n.WaitStatus(deadline(t), job, "failed")
	must.NoError(t, err)
	story := node.Story(alloc)
	for _, w := range want {
		must.StrContains(t, story, w)
	}
	t.Logf("as the user reads it: %s", story)
}

// held is what the container of an allocation holds by the simulator's record, by GPU.
func held(t *testing.T, n *node.Node, allocID string) map[string]node.RecordGroup {
	t.Helper()
	group, err := n.Group(deadline(t), allocID, "t")
	must.NoError(t, err)
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	return record.Group(group)
}

// mustHoldExactly checks that the container of an allocation holds its limit and never held more.
func mustHoldExactly(t *testing.T, n *node.Node, allocID string, limit uint64) {
	t.Helper()
	groups := held(t, n, allocID)
	must.MapLen(t, 1, groups)
	for _, g := range groups {
		must.Eq(t, limit, g.Bytes)
		must.Eq(t, limit, g.PeakBytes)
	}
}

// mustBeFree checks that no process holds any physical memory.
func mustBeFree(t *testing.T, n *node.Node) {
	t.Helper()
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	for _, g := range record.GPUs {
		must.Zero(t, g.UsedBytes, must.Sprintf("of GPU %s", g.UUID))
	}
}
