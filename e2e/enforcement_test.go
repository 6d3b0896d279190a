//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/enforcement"
)

// around is an image of programs that take memory by the driver's own library.
const around = "around:1"

// driverLibrary is the path of the driver's own library in a container that has no shadow.
const driverLibrary = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"

// r615 is a node whose driver limits memory by cgroup.
func r615(c *node.Config) {
	c.Topology, c.Unified = filepath.Join(build, "../e2e/simgpu/topologies/h200x2-r615.conf"), true
}

func aroundImage() (v1.Image, error) {
	return images.Program(filepath.Join(build, "e2e/around"),
		images.File{Path: "/bin/around-setuid", From: filepath.Join(build, "e2e/around"), Mode: 0o4755},
		images.File{Path: "/bin/around-static", From: filepath.Join(build, "e2e/around-static"), Mode: 0o755},
		// A static program looks for the loader where libraries are.
		images.File{Path: "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", From: "/lib64/ld-linux-x86-64.so.2", Mode: 0o755})
}

// TestEnforcement covers limits that the GPU driver enforces, on a simulated driver of version 615.
func TestEnforcement(t *testing.T) {
	b := startBeside(t, r615)
	img, err := aroundImage()
	must.NoError(t, err)
	must.NoError(t, b.ImportImage(deadline(t), around, img))
	archive := filepath.Join(b.Dir, "around.tar")
	must.NoError(t, images.SaveDockerArchive(img, around, archive))
	must.NoError(t, b.docker.Load(deadline(t), archive))
	t.Run("published", func(t *testing.T) { testEnforcementPublished(t, b.Node) })
	t.Run("programs around the library", func(t *testing.T) { testAround(t, b.Node) })
	t.Run("an image without libraries", func(t *testing.T) { testWithoutLibc(t, b.Node) })
	t.Run("two blocks on one GPU", func(t *testing.T) { testTwoBlocks(t, b.Node) })
	t.Run("two GPUs", func(t *testing.T) { testTwoGPUs(t, b.Node) })
	t.Run("restored", func(t *testing.T) { testRestored(t, b.Node) })
	t.Run("Docker", func(t *testing.T) { testDockerByDriver(t, b, "with-governor") })
	t.Run("without a governor", func(t *testing.T) { testWithoutGovernor(t, b) })
}

// TestEnforcement_Shares has the driver limit the memory of programs that compute in turns.
func TestEnforcement_Shares(t *testing.T) {
	n := startSharesOn(t, r615)
	img, err := aroundImage()
	must.NoError(t, err)
	must.NoError(t, n.ImportImage(deadline(t), around, img))
	small, large := load(t, n, "small", 42, ""), load(t, n, "large", 84, "")
	comesTo(t, n, 100*42/126., small, large)
	start(t, n, task{job: "around", image: around, command: "around", args: []string{"libcuda.so.1"}, devices: []string{onGPU(2, 0)}})
	alloc := running(t, n, "around")
	saysLine(t, n, alloc.ID, "took ")
	mustHoldExactly(t, n, alloc.ID, 2<<30)
	mustShowUse(t, n, alloc.ID, 2<<30)
	must.StrContains(t, executedIn(t, n, alloc.ID, "t", "ls", "/.tranche/claims"), "\n") // the library knows the claim
}

// Jobs can require the driver's enforcement.
func testEnforcementPublished(t *testing.T, n *node.Node) {
	_, err := n.WaitNode(deadline(t), func(n *api.Node) bool {
		for _, group := range n.NodeResources.Devices {
			if a := group.Attributes["enforcement"]; a == nil || a.String() != "driver" {
				return false
			}
		}
		return len(n.NodeResources.Devices) == 2
	})
	must.NoError(t, err)
}

// byDriver are the bodies of a device block of n slices whose limit the driver enforces.
func byDriver(n int) string {
	return anyGPU(n) + "\nconstraint {\n attribute = \"${device.attr.enforcement}\"\n value = \"driver\"\n}"
}

// Programs that no library in the container could limit hold exactly their limit.
func testAround(t *testing.T, n *node.Node) {
	for name, tc := range map[string]struct {
		command string
		args    []string
		extra   string
	}{
		"path":   {command: "around", args: []string{driverLibrary}},
		"copy":   {command: "around", args: []string{driverLibrary, "/tmp/copy.so"}},
		"static": {command: "around-static", args: []string{driverLibrary}},
		"setuid": {command: "around-setuid", args: []string{driverLibrary}, extra: `user = "1000"`},
		"plain":  {command: "around", args: []string{"libcuda.so.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := "around-" + name
			start(t, n, task{
				job: job, image: around, command: tc.command, args: tc.args, devices: []string{byDriver(2)}, taskExtra: tc.extra,
			})
			alloc := running(t, n, job)
			saysLine(t, n, alloc.ID, "took ")
			mustHoldExactly(t, n, alloc.ID, 2<<30)
			mustShowUse(t, n, alloc.ID, 2<<30)
			must.NoError(t, n.StopJob(deadline(t), job))
		})
	}
}

// mustShowUse waits until what the claims of an allocation are said to use is what the record says that they hold.
func mustShowUse(t *testing.T, n *node.Node, allocID string, want ...uint64) {
	t.Helper()
	claims, err := n.Claims(deadline(t), allocID, "t")
	must.NoError(t, err)
	must.Len(t, len(want), claims)
	ledger := openLedger(t, n)
	for i, c := range claims {
		must.Eq(t, claim.EnforcementDriver, c.Enforced())
		must.NoError(t, until(deadline(t), func() (bool, error) { // it is published every second
			u, err := ledger.UsageOf(c)
			return u.UsedBytes == want[i] && u.PeakBytes == want[i], err
		}), must.Sprintf("claim %s is to use %d bytes", c.ID, want[i]))
	}
}

// An image without glibc starts: nothing is put in front of its programs.
func testWithoutLibc(t *testing.T, n *node.Node) {
	img, err := images.Busybox()
	must.NoError(t, err)
	must.NoError(t, n.ImportImage(deadline(t), "bare:1", img))
	out := completed(t, n, task{job: "bare", image: "bare:1", command: "sh", devices: []string{byDriver(1)},
		args: []string{"-c", "ls /dev/nvidia?; ls -d /.tranche || echo nothing of ours"}})
	must.StrContains(t, out, "/dev/nvidia")
	must.StrContains(t, out, "nothing of ours")
}

func testTwoBlocks(t *testing.T, n *node.Node) {
	start(t, n, task{job: "blocks", image: around, command: "around", args: []string{driverLibrary},
		devices: []string{onGPU(1, 1), onGPU(2, 1)}})
	alloc := running(t, n, "blocks")
	saysLine(t, n, alloc.ID, "took ")
	mustHoldExactly(t, n, alloc.ID, 3<<30)
	must.NoError(t, n.StopJob(deadline(t), "blocks"))
}

func testTwoGPUs(t *testing.T, n *node.Node) {
	start(t, n, task{job: "gpus", image: around, command: "around", args: []string{driverLibrary},
		devices: []string{onGPU(1, 0), onGPU(2, 1)}})
	alloc := running(t, n, "gpus")
	saysLine(t, n, alloc.ID, "took ")
	mustHoldExactly(t, n, alloc.ID, 1<<30)
	mustShowUse(t, n, alloc.ID, 1<<30, 0)
	must.NoError(t, n.StopJob(deadline(t), "gpus"))
}

// A limit that somebody has removed is there again, also where the governor was killed.
func testRestored(t *testing.T, n *node.Node) {
	start(t, n, task{job: "restored", image: around, command: "sleep", args: []string{"1000"}, devices: []string{byDriver(1)}})
	alloc := running(t, n, "restored")
	pid, err := n.InitPID(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	must.NoError(t, unix.Kill(n.GovernorPID(), unix.SIGKILL)) // another is started
	before := limitOf(t, n, pid)
	claims, err := n.Claims(deadline(t), alloc.ID, "t")
	must.NoError(t, err)
	must.Eq(t, 1<<30, before.Hard)
	smi := exec.Command(filepath.Join(build, "sim/bin/nvidia-smi"), "memory-limits", "--set", "-n", before.Path,
		"--soft-limit", "0", "--hard-limit", "4096", "-i", strconv.Itoa(claims[0].GPU.Index))
	smi.Env = append(append(os.Environ(), n.Sim.Env()...), "LD_LIBRARY_PATH="+filepath.Join(build, "sim/lib"))
	out, err := output(smi)
	must.NoError(t, err, must.Sprint(out))
	must.NoError(t, until(deadline(t), func() (bool, error) { return limitOf(t, n, pid).Hard == before.Hard, nil }))
	must.NoError(t, n.StopJob(deadline(t), "restored"))
}

// limitOf is the limit of a process's cgroup by the simulator's record.
func limitOf(t *testing.T, n *node.Node, pid int) node.RecordLimit {
	t.Helper()
	dir, err := enforcement.Cgroup(pid)
	must.NoError(t, err)
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	for _, limit := range record.MemoryLimits {
		if limit.Path == dir {
			return limit
		}
	}
	t.Fatalf("the cgroup %s has no limit: %+v", dir, record.MemoryLimits)
	return node.RecordLimit{}
}

// testDockerByDriver covers containers of Docker.
func testDockerByDriver(t *testing.T, b *beside, name string) {
	b.run(t, node.Container{
		Name: name, Image: around, Runtime: node.RuntimeTranche, Env: []string{"TRANCHE_GPU_MEMORY=1GiB"}, Detach: true,
		Command: []string{"around", driverLibrary},
	})
	defer b.remove(t, name)
	must.NoError(t, until(deadline(t), func() (bool, error) {
		out, err := output(b.docker.Command(deadline(t), "logs", name))
		return strings.Contains(out, "took "), err
	}))
	record, err := b.Sim.Record(deadline(t))
	must.NoError(t, err)
	must.Eq(t, 1<<30, record.GPUs[0].UsedBytes+record.GPUs[1].UsedBytes)
}

// testWithoutGovernor covers a node on which no governor runs: the hook has the command tranche set the limit.
func testWithoutGovernor(t *testing.T, b *beside) {
	b.Agent.Stop()
	if pid := b.GovernorPID(); pid != 0 {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		must.NoError(t, node.WaitGone(pid))
	}
	testDockerByDriver(t, b, "without-governor")
	must.Zero(t, b.GovernorPID())
	must.NoError(t, b.Agent.Start(deadline(t))) // for the end of the test
}
