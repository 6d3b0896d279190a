//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// engines is a node with everything that starts containers on it: an agent of Nomad with three drivers, Docker, Podman,
// and two generations of containerd.
type engines struct {
	*node.Node
	t   *testing.T
	all map[string]node.Engine
	// archive is the image of gpu-probe as `docker save` writes it, and pause that of a pod's first container.
	archive, pause string
	// ranNVIDIA are traces of NVIDIA's programs, if they were run.
	ranNVIDIA func() []string
}

// nomadDrivers is how an agent's own docker driver and its podman driver come to tranche-runtime. The docker driver takes
// nvidia_runtime for every task that has NVIDIA_VISIBLE_DEVICES from a device plugin, as ours has, and refuses others.
const nomadDrivers = `
plugin "docker" {
  config {
    endpoint       = "unix://DIR/d/docker.sock"
    nvidia_runtime = "tranche"
    allow_runtimes = ["runc", "tranche", "tranche-crun"]
    gc {
      image = false
    }
  }
}

plugin "nomad-driver-podman" {
  config {
    socket_path = "unix://DIR/p/podman.sock"
  }
}
`

// startEngines starts the node for a group of tests.
func startEngines(t *testing.T) *engines {
	t.Helper()
	e := &engines{t: t, all: map[string]node.Engine{}}
	e.Node = startNode(t, func(c *node.Config) {
		c.Docker, c.CRI = true, true
		c.ContainerdConfig = node.CRIConfig(node.RuntimesOf(*c))
		c.Plugins = []string{filepath.Join(build, "tools/nomad-driver-podman")}
		c.PluginBlocks = strings.ReplaceAll(nomadDrivers, "DIR", c.Dir)
		c.BeforeAgent = func(ctx context.Context, n *node.Node) error {
			e.archive = filepath.Join(n.Dir, "gpu-probe.tar")
			e.pause = filepath.Join(n.Dir, "pause.tar")
			return errors.Join(saveProbe(e.archive), savePause(e.pause), e.start(ctx, n))
		}
	})
	_, err := e.WaitNode(deadline(t), func(n *api.Node) bool {
		docker, podman := n.Drivers["docker"], n.Drivers["podman"]
		return docker != nil && docker.Healthy && podman != nil && podman.Healthy
	})
	must.NoError(t, err)
	// NVIDIA's own CDI specification, by which engines hand out whole GPUs to whom the runtime lets have them.
	nvidia, err := os.ReadFile(filepath.Join(e.DriverRoot(), "etc/cdi/simulated-gpu.json"))
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll("/etc/cdi", 0o755))
	must.NoError(t, os.WriteFile("/etc/cdi/nvidia.json", nvidia, 0o644))
	// The command line that finds the simulated GPUs, as a service of the node would run it at each boot.
	cli, err := e.Sim.CLI(build, e.Dir)
	must.NoError(t, err)
	out, err := output(exec.Command(cli, "cdi", "generate", "--driver-root", e.DriverRoot()))
	must.NoError(t, err, must.Sprint(out))
	return e
}

func saveProbe(archive string) error {
	img, err := images.Program(filepath.Join(build, "e2e/gpu-probe"))
	if err != nil {
		return err
	}
	return images.SaveDockerArchive(img, probeImage, archive)
}

func savePause(archive string) error {
	img, err := images.Busybox()
	if err == nil {
		img, err = images.WithConfig(img, func(c *v1.Config) { c.Cmd = []string{"sleep", "100000"} })
	}
	if err != nil {
		return err
	}
	return images.SaveDockerArchive(img, node.PauseImage, archive)
}

// start starts every engine and gives it the image.
func (e *engines) start(ctx context.Context, n *node.Node) error {
	runtimes, err := n.InstallRuntime()
	if err != nil {
		return err
	}
	docker, err := node.StartDocker(ctx, filepath.Join(n.Dir, "d"), n.Containerd.Address,
		node.DockerRuntimes(runtimes, node.RuntimeTranche)...)
	if err != nil {
		return err
	}
	n.OnStop(func(context.Context) error { return docker.Stop() })
	podman, err := node.NewPodman(filepath.Join(n.Dir, "p"), runtimes, node.RuntimeTranche)
	if err != nil {
		return err
	}
	n.OnStop(podman.Stop)
	if err := podman.Serve(ctx); err != nil {
		return err
	}
	second, err := node.StartContainerd2(ctx, filepath.Join(n.Dir, "c2"), build,
		node.ContainerdOptions{CRI: true, ExtraConfig: node.CRIConfig(runtimes)})
	if err != nil {
		return err
	}
	n.OnStop(func(context.Context) error { return second.Stop() })
	for _, engine := range []node.Engine{
		docker.Engine(), podman,
		node.NewCtr("containerd 1", "", n.Containerd, runtimes), node.NewCtr2(second, build, runtimes),
		node.NewCRI("CRI 1", n.Containerd, build), node.NewCRI("CRI 2", second, build),
		node.NewNerdctl(filepath.Join(build, "tools/nerdctl"), n.Dir, second, runtimes),
	} {
		if err := engine.Load(ctx, e.archive); err != nil {
			return err
		}
		if cri, ok := engine.(*node.CRI); ok {
			if err := cri.Load(ctx, e.pause); err != nil {
				return err
			}
		}
		e.all[engine.Name()] = engine
	}
	return nil
}

// held is the one claim of the node that a living container has; nil if none has.
func (e *engines) held() *claim.Claim {
	e.t.Helper()
	all, problems, err := openLedger(e.t, e.Node).List(deadline(e.t))
	must.NoError(e.t, err)
	must.SliceEmpty(e.t, problems)
	var held *claim.Claim
	for _, c := range all {
		if c.Container != nil && c.Released.IsZero() {
			must.Nil(e.t, held, must.Sprint("more than one claim is held"))
			held = c
		}
	}
	return held
}

// find is the claim with an ID, or nil.
func (e *engines) find(id string) *claim.Claim {
	e.t.Helper()
	all, _, err := openLedger(e.t, e.Node).List(deadline(e.t))
	must.NoError(e.t, err)
	for _, c := range all {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// launched is a container that a test has started.
type launched struct {
	// says hands over its lines of output until one is enough.
	says func(t *testing.T, enough func(line string) bool)
	// end has it told to end by SIGTERM and returns its exit code.
	end func(t *testing.T) int
}

// launch starts a container by a command line that stays with it.
func (e *engines) launch(t *testing.T, engine node.Engine, c node.Container) *launched {
	t.Helper()
	cmd := engine.Run(deadline(t), c)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { // A test that failed leaves its container; the next one wants its GPU.
		if t.Failed() {
			_ = engine.Signal(deadline(t), c.Name, "SIGKILL").Run()
		}
	})
	lines := bufio.NewScanner(stdout)
	return &launched{
		says: func(t *testing.T, enough func(string) bool) {
			t.Helper()
			for lines.Scan() {
				if enough(lines.Text()) {
					return
				}
			}
			err := cmd.Wait()
			t.Fatalf("container %s of %s ended: %v: %s", c.Name, engine.Name(), err, stderr.String())
		},
		end: func(t *testing.T) int {
			t.Helper()
			out, err := engine.Signal(deadline(t), c.Name, "SIGTERM").CombinedOutput()
			must.NoError(t, err, must.Sprintf("%s", out))
			for lines.Scan() {
				continue // Until the output ends, which Wait would cut off.
			}
			return exitCode(t, cmd.Wait())
		},
	}
}

// exitCode is the exit code that an error of a command holds.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	must.True(t, errors.As(err, &exit), must.Sprintf("no exit code: %v", err))
	return exit.ExitCode()
}

// launchJob starts a container as a task of Nomad.
func (e *engines) launchJob(t *testing.T, s task) *launched {
	t.Helper()
	start(t, e.Node, s)
	t.Cleanup(func() {
		if t.Failed() {
			_ = e.StopJob(deadline(t), s.job)
		}
	})
	alloc := running(t, e.Node, s.job)
	return &launched{
		says: func(t *testing.T, enough func(string) bool) {
			t.Helper()
			must.NoError(t, e.Lines(deadline(t), alloc.ID, "t", func(line string) bool {
				// Podman 4 writes lines into Nomad's logs with their time and stream before them.
				if _, text, ok := strings.Cut(line, " stdout F "); ok {
					line = text
				}
				return enough(line)
			}))
		},
		end: func(t *testing.T) int {
			t.Helper()
			must.NoError(t, e.StopJob(deadline(t), s.job))
			stopped, err := e.WaitAlloc(deadline(t), s.job, func(a *api.AllocationListStub) bool {
				return a.ClientStatus == "complete" || a.ClientStatus == "failed"
			})
			must.NoError(t, err)
			if s.driver == "podman" {
				return e.podmanExit(t, alloc.ID)
			}
			for _, event := range stopped.TaskStates["t"].Events {
				if event.Type == api.TaskTerminated {
					return event.ExitCode
				}
			}
			t.Fatalf("no exit code: %s", node.Story(stopped))
			return -1
		},
	}
}

// podmanExit is the exit code of a task's container as Podman recorded it. nomad-driver-podman queries once a second, and
// takes exit code 0 of a container that is still being stopped. It removes the container, but not the event.
func (e *engines) podmanExit(t *testing.T, allocID string) int {
	t.Helper()
	podman := e.all["podman"].(*node.Podman)
	code := -1
	must.NoError(t, until(deadline(t), func() (bool, error) {
		said, err := podman.Command(deadline(t), "events", "--stream=false", "--filter", "container=t-"+allocID,
			"--filter", "event=died", "--format", "{{.ContainerExitCode}}").Output()
		if err != nil || len(said) == 0 {
			return false, err
		}
		code, err = strconv.Atoi(strings.TrimSpace(string(said)))
		return true, err
	}))
	return code
}

// output runs a command to its end and returns what it wrote, both streams together.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// inTerminal is the command, run with a terminal.
func inTerminal(cmd *exec.Cmd) *exec.Cmd {
	quoted := make([]string, 0, len(cmd.Args))
	for _, arg := range cmd.Args {
		quoted = append(quoted, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	inside := exec.Command("script", "--quiet", "--return", "--command", strings.Join(quoted, " "), os.DevNull)
	inside.Env = cmd.Env
	return inside
}
