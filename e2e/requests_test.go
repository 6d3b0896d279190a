//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/hashicorp/nomad/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestRequests has containers ask for a fraction by themselves, on a node where Nomad gives out the same GPUs: each gets what
// it asked for and no more, and neither side takes anything from the other.
func TestRequests(t *testing.T) {
	n := startNode(t)
	l := newLocal(t, n)
	gpus := recordedGPUs(t, n)

	// Two and a half of its three slices: rounded up for those who share the GPU, not for the container.
	web := l.start("web", nil, "TRANCHE_GPU_MEMORY=2560MiB", "TRANCHE_GPU=index:0")
	web.holdsExactly(5 * gib / 2)
	batch := l.start("batch", map[string]string{
		"dev.tranche/gpu-memory": "1GiB", "dev.tranche/gpu": "uuid:" + gpus[0].UUID,
	})
	batch.holdsExactly(gib)
	must.MapLen(t, 4, l.nomadSees(gpus[0].UUID, 4))

	// Nomad has 136 slices left there.
	start(t, n, task{job: "large", devices: []string{onGPU(137, 0)}, command: "gpu-probe", args: []string{"fill"}})
	start(t, n, task{job: "fits", devices: []string{onGPU(136, 0)}, command: "gpu-probe", args: []string{"fill"}})
	fits := running(t, n, "fits")
	saysLine(t, n, fits.ID, `"computing"`)
	mustHoldExactly(t, n, fits.ID, 136*gib)
	web.holdsExactly(5 * gib / 2)

	refused, err := l.command("run", "--bundle", l.bundle("refused", nil, "TRANCHE_GPU_MEMORY=1GiB", "TRANCHE_GPU=0"), "refused").
		CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(refused), "has 0 of 140 slices free")

	// What ends gives its slices to whoever waits, be that Nomad.
	must.NoError(t, n.StopJob(deadline(t), "fits"))
	web.end()
	batch.end()
	must.MapEmpty(t, l.nomadSees(gpus[0].UUID, 0))
	large := running(t, n, "large")
	saysLine(t, n, large.ID, `"computing"`)
	mustHoldExactly(t, n, large.ID, 137*gib)
}

// TestRequests_OfADormantClaim asks for what a task had that is done: Nomad never says so, and its claim yields.
func TestRequests_OfADormantClaim(t *testing.T) {
	n := startNode(t)
	l := newLocal(t, n)
	gpus := recordedGPUs(t, n)
	start(t, n, task{job: "done", jobType: "batch", devices: []string{onGPU(140, 0)}, command: "gpu-probe", args: []string{"look"}})
	_, err := n.WaitStatus(deadline(t), "done", "complete")
	must.NoError(t, err)
	l.start("late", nil, "TRANCHE_GPU_MEMORY=1GiB", "TRANCHE_GPU="+gpus[0].UUID).holdsExactly(gib)
}

func recordedGPUs(t *testing.T, n *node.Node) []node.RecordGPU {
	t.Helper()
	record, err := n.Sim.Record(deadline(t))
	must.NoError(t, err)
	return record.GPUs
}

// local starts containers on a node without Nomad: by tranche-runtime, which becomes runc.
type local struct {
	t      *testing.T
	n      *node.Node
	config string
}

func newLocal(t *testing.T, n *node.Node) *local {
	t.Helper()
	l := &local{t: t, n: n, config: filepath.Join(n.Dir, "runtime.toml")}
	cli, err := n.Sim.CLI(n.Prefix(), n.Dir)
	must.NoError(t, err)
	var text strings.Builder
	for key, value := range map[string]string{
		"driver_root": n.DriverRoot(), "state_dir": n.StateDir(), "run_dir": n.RunDir(), "runtime": "runc", "cli_path": cli,
		"shadow_dir": n.ShadowDir(), "hook_path": n.Program("tranche-hook"),
	} {
		fmt.Fprintf(&text, "%s = %q\n", key, value)
	}
	must.NoError(t, os.WriteFile(l.config, []byte(text.String()), 0o644))
	return l
}

func (l *local) command(args ...string) *exec.Cmd { return l.commandUntil(deadline(l.t), args...) }

func (l *local) commandUntil(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.n.Program("tranche-runtime"),
		append([]string{"--root", filepath.Join(l.n.Dir, "oci")}, args...)...)
	cmd.Env = append(os.Environ(), "TRANCHE_CONFIG="+l.config)
	return cmd
}

// bundle makes a bundle in which gpu-probe takes all that it can.
func (l *local) bundle(id string, annotations map[string]string, env ...string) string {
	l.t.Helper()
	dir := filepath.Join(l.n.Dir, "bundles", id)
	rootfs := filepath.Join(dir, "rootfs")
	must.NoError(l.t, os.MkdirAll(rootfs, 0o755))
	img, err := images.Program(filepath.Join(build, "e2e/gpu-probe"))
	must.NoError(l.t, err)
	layers := mutate.Extract(img)
	defer layers.Close()
	unpack := exec.CommandContext(deadline(l.t), "tar", "-x", "-C", rootfs)
	unpack.Stdin = layers
	out, err := unpack.CombinedOutput()
	must.NoError(l.t, err, must.Sprint(string(out)))
	for _, at := range []string{"proc", "dev", "sys", "tmp"} {
		must.NoError(l.t, os.MkdirAll(filepath.Join(rootfs, at), 0o755))
	}
	spec := &specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: "rootfs"}, Annotations: annotations,
		Process: &specs.Process{
			Args: []string{"/bin/gpu-probe", "fill"}, Cwd: "/", Env: append([]string{"PATH=/bin"}, env...),
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}, {Type: "uts"}}},
	}
	text, err := json.Marshal(spec)
	must.NoError(l.t, err)
	must.NoError(l.t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644))
	return dir
}

// localContainer is a container that asked.
type localContainer struct {
	*local
	id, group string
	claim     *claim.Claim
	run       *exec.Cmd
}

// start runs a container in the foreground, and returns when its program has taken all that it gets.
func (l *local) start(id string, annotations map[string]string, env ...string) *localContainer {
	l.t.Helper()
	c := &localContainer{local: l, id: id}
	c.run = l.commandUntil(context.Background(), "run", "--bundle", l.bundle(id, annotations, env...), id)
	var stderr strings.Builder
	c.run.Stderr = &stderr
	stdout, err := c.run.StdoutPipe()
	must.NoError(l.t, err)
	must.NoError(l.t, c.run.Start())
	l.t.Cleanup(func() { _ = l.command("delete", "--force", id).Run() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), `"computing"`) {
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }()
	claims, _, err := openLedger(l.t, l.n).List(deadline(l.t))
	must.NoError(l.t, err)
	for _, made := range claims {
		if made.Container != nil && made.Container.ID == id {
			c.claim = made
		}
	}
	must.NotNil(l.t, c.claim, must.Func(stderr.String))
	c.group, err = node.GroupOf(c.claim.Container.InitPID)
	must.NoError(l.t, err)
	return c
}

// holdsExactly checks by the simulator's record that the container holds its limit on its claim's GPU and never held more.
func (c *localContainer) holdsExactly(limit uint64) {
	c.t.Helper()
	record, err := c.n.Sim.Record(deadline(c.t))
	must.NoError(c.t, err)
	groups := record.Group(c.group)
	must.MapLen(c.t, 1, groups)
	must.Eq(c.t, limit, groups[c.claim.GPU.UUID].Bytes)
	must.Eq(c.t, limit, groups[c.claim.GPU.UUID].PeakBytes)
}

func (c *localContainer) end() {
	c.t.Helper()
	must.NoError(c.t, c.command("kill", c.id, "TERM").Run())
	must.NoError(c.t, c.run.Wait())
}

// nomadSees waits until Nomad's server leaves so many slices of a GPU alone, and returns why.
func (l *local) nomadSees(uuid string, slices int) map[string]string {
	l.t.Helper()
	var reasons map[string]string
	_, err := l.n.WaitNode(deadline(l.t), func(info *api.Node) bool {
		reasons = map[string]string{}
		for _, group := range info.NodeResources.Devices {
			for _, instance := range group.Instances {
				if strings.HasPrefix(instance.ID, uuid) && !instance.Healthy {
					reasons[instance.ID] = instance.HealthDescription
				}
			}
		}
		return len(reasons) == slices
	})
	must.NoError(l.t, err, must.Sprint(reasons))
	for _, reason := range reasons {
		must.StrContains(l.t, reason, "used outside Nomad by claim")
	}
	return reasons
}

// TestRequests_PodmanDevice gives a container of Podman's a CDI device, as `tranche cdi generate` describes it.
func TestRequests_PodmanDevice(t *testing.T) {
	n := startNode(t)
	l := newLocal(t, n)
	l.generateCDI()
	podman := l.podman()
	run := podman("run", "--name", "cdi", "--network", "none", "--device", "tranche.dev/slice=3GiB", probeImage, "gpu-probe", "fill")
	var stderr strings.Builder
	run.Stderr = &stderr
	stdout, err := run.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, run.Start())
	t.Cleanup(func() { _ = podman("rm", "--force", "--time", "1", "cdi").Run() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), `"computing"`) {
	}
	claims, _, err := openLedger(t, n).List(deadline(t))
	must.NoError(t, err)
	must.Len(t, 1, claims, must.Func(stderr.String))
	must.Eq(t, 3*gib, claims[0].LimitBytes)
	group, err := node.GroupOf(claims[0].Container.InitPID)
	must.NoError(t, err)
	(&localContainer{local: l, claim: claims[0], group: group}).holdsExactly(3 * gib)
	must.NoError(t, podman("stop", "--time", "20", "cdi").Run())
	_ = run.Wait()
	claims, _, err = openLedger(t, n).List(deadline(t))
	must.NoError(t, err)
	must.SliceEmpty(t, claims)
}

// generateCDI describes the devices where engines look for them, which lies in the sandbox's own /run.
func (l *local) generateCDI() {
	l.t.Helper()
	cmd := exec.CommandContext(deadline(l.t), filepath.Join(build, "bin/tranche"), "cdi", "generate", "--driver-root", l.n.DriverRoot())
	cmd.Env = append(append(os.Environ(), l.n.Sim.Env()...), "TRANCHE_CONFIG="+l.config)
	out, err := cmd.CombinedOutput()
	must.NoError(l.t, err, must.Sprint(string(out)))
	l.t.Cleanup(func() { _ = os.Remove("/var/run/cdi/tranche.dev-slice.json") })
}

// podman is Podman with storage of its own, the image of the probe, and tranche-runtime as its runtime.
func (l *local) podman() func(args ...string) *exec.Cmd {
	l.t.Helper()
	dir := filepath.Join(l.n.Dir, "podman")
	must.NoError(l.t, os.MkdirAll(dir, 0o711))
	// Podman gives runtimes an environment of its own.
	runtime := filepath.Join(dir, "tranche")
	must.NoError(l.t, os.WriteFile(runtime, []byte("#!/bin/sh\nTRANCHE_CONFIG="+l.config+" exec "+
		filepath.Join(build, "bin/tranche-runtime")+" \"$@\"\n"), 0o755))
	config := filepath.Join(dir, "containers.conf")
	must.NoError(l.t, os.WriteFile(config, []byte("[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n"), 0o644))
	run, err := os.MkdirTemp("", "podman") // Podman wants a short name for it.
	must.NoError(l.t, err)
	l.t.Cleanup(func() { _ = os.RemoveAll(run) })
	podman := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(deadline(l.t), "podman", append([]string{
			"--root", filepath.Join(dir, "root"), "--runroot", run, "--storage-driver", "vfs",
			"--runtime", runtime,
		}, args...)...)
		cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+config)
		return cmd
	}
	img, err := images.Program(filepath.Join(build, "e2e/gpu-probe"))
	must.NoError(l.t, err)
	archive := filepath.Join(dir, "probe.tar")
	must.NoError(l.t, images.SaveDockerArchive(img, probeImage, archive))
	out, err := podman("load", "--quiet", "--input", archive).CombinedOutput()
	must.NoError(l.t, err, must.Sprint(string(out)))
	return podman
}
