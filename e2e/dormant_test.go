//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// beside is a node on which Docker starts containers beside Nomad's tasks.
type beside struct {
	*node.Node
	docker *node.DockerLike
}

func startBeside(t *testing.T, change ...func(*node.Config)) *beside {
	t.Helper()
	b := &beside{}
	b.Node = startNode(t, append(change, func(c *node.Config) {
		c.BeforeAgent = func(ctx context.Context, n *node.Node) error {
			archive := filepath.Join(n.Dir, "gpu-probe.tar")
			runtimes, err := n.InstallRuntime()
			if err := errors.Join(err, saveProbe(archive)); err != nil {
				return err
			}
			docker, err := node.StartDocker(ctx, filepath.Join(n.Dir, "d"), n.Containerd.Address,
				node.DockerRuntimes(runtimes, node.RuntimeTranche)...)
			if err != nil {
				return err
			}
			n.OnStop(func(context.Context) error { return docker.Stop() })
			b.docker = docker.Engine()
			return b.docker.Load(ctx, archive)
		}
	})...)
	return b
}

// wholeGPU is a container that takes all slices of the GPU 0.
func (b *beside) wholeGPU(name string) node.Container {
	return node.Container{
		Name: name, Image: probeImage, Runtime: node.RuntimeTranche, Env: []string{"TRANCHE_GPU_MEMORY=140GiB", "TRANCHE_GPU=0"},
		Command: []string{"gpu-probe", "fill"}, Detach: true,
	}
}

// run starts a container, and fails the test if that is refused.
func (b *beside) run(t *testing.T, c node.Container) {
	t.Helper()
	out, err := output(b.docker.Run(deadline(t), c))
	must.NoError(t, err, must.Sprint(out))
}

// remove ends a container and waits until its claim is gone.
func (b *beside) remove(t *testing.T, name string) {
	t.Helper()
	out, err := output(b.docker.Command(deadline(t), "rm", "--force", name))
	must.NoError(t, err, must.Sprint(out))
	must.NoError(t, until(deadline(t), func() (bool, error) { return b.of(t, claim.OwnerExternal) == nil, nil }))
}

// of is the one claim of an owner; nil if there is none.
func (b *beside) of(t *testing.T, owner string) *claim.Claim {
	t.Helper()
	all, err := b.AllClaims(deadline(t))
	must.NoError(t, err)
	var found *claim.Claim
	for _, c := range all {
		if c.Owner == owner {
			must.Nil(t, found, must.Sprintf("several claims of %s", owner))
			found = c
		}
	}
	return found
}

// state waits until the one claim of Nomad's is in a state, and returns it.
func (b *beside) state(t *testing.T, want claim.State) *claim.Claim {
	t.Helper()
	ledger := openLedger(t, b.Node)
	var c *claim.Claim
	must.NoError(t, until(deadline(t), func() (bool, error) {
		c = b.of(t, claim.OwnerNomad)
		return c != nil && ledger.State(c, time.Now()) == want, nil
	}), must.Sprintf("waiting for a claim that is %s", want))
	return c
}

// purge stops a job and has Nomad forget it.
func (b *beside) purge(t *testing.T, job string) {
	t.Helper()
	_, _, err := b.Agent.API.Jobs().Deregister(job, true, nil)
	must.NoError(t, err)
}

// healthy waits until Nomad sees a number of healthy slices of the GPU 0.
func (b *beside) healthy(t *testing.T, want int) {
	t.Helper()
	_, err := b.WaitNode(deadline(t), func(n *api.Node) bool {
		found := 0
		for _, group := range n.NodeResources.Devices {
			for _, d := range group.Instances {
				if d.Healthy && strings.HasSuffix(group.Name, "#0") {
					found++
				}
			}
		}
		return found == want
	})
	must.NoError(t, err, must.Sprintf("waiting for %d healthy slices", want))
}

// command runs a command of tranche on the node.
func (b *beside) command(t *testing.T, args ...string) string {
	t.Helper()
	args = append(args, "--state-dir", b.StateDir(), "--run-dir", b.RunDir())
	out, err := output(exec.Command(filepath.Join(build, "bin/tranche"), args...))
	must.NoError(t, err, must.Sprint(out))
	return out
}

// TestDormant has Docker take what Nomad's tasks have given up, and them take it back.
func TestDormant(t *testing.T) {
	b := startBeside(t)
	t.Run("stopped", b.testStopped)
	t.Run("failed starts", b.testFailedStarts)
	t.Run("collected", b.testCollected)
	t.Run("restart in place", b.testRestartInPlace)
}

// A job that was stopped leaves all of its GPU to Docker, and Nomad places nothing there meanwhile.
func (b *beside) testStopped(t *testing.T) {
	start(t, b.Node, task{job: "stopped", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(140, 0)}})
	alloc := running(t, b.Node, "stopped")
	saysLine(t, b.Node, alloc.ID, `"computing"`)
	out, err := output(b.docker.Run(deadline(t), b.wholeGPU("too-early")))
	must.Error(t, err)
	must.StrContains(t, out, "no GPU has 140GiB free")
	_, err = output(b.docker.Command(deadline(t), "rm", "--force", "too-early"))
	must.NoError(t, err)

	_, _, err = b.Agent.API.Jobs().Deregister("stopped", false, nil) // purged, its allocation would be gone, and the claim with it
	must.NoError(t, err)
	dormant := b.state(t, claim.StateDormant)
	must.StrContains(t, b.command(t, "claim", "list"), "default/stopped/g/t "+alloc.ID[:8])
	b.run(t, b.wholeGPU("after"))
	made := b.of(t, claim.OwnerExternal)
	must.Len(t, 140, made.Slices)
	must.Nil(t, b.of(t, claim.OwnerNomad), must.Sprintf("claim %s has not yielded", dormant.ID))
	must.StrContains(t, b.command(t, "claim", "list"), "container after")
	b.healthy(t, 0)
	b.remove(t, "after")
	b.healthy(t, 140)
}

// A start that fails keeps nothing reserved, and its claim says whose it was.
func (b *beside) testFailedStarts(t *testing.T) {
	for job, s := range map[string]task{
		"absent-image": {image: "tranche.local/absent:1"},
		"wrong-option": {configExtra: `cap_add = ["no-such-capability"]`},
		"no-program":   {command: "/no/such/program"},
	} {
		s.job, s.devices = job, []string{onGPU(140, 0)}
		start(t, b.Node, s)
		alloc, err := b.WaitStatus(deadline(t), job, "failed")
		must.NoError(t, err)
		c := b.state(t, claim.StateDormant)
		noted := workloadOf(t, b.Node, c.ID)
		must.Eq(t, claim.Workload{
			Namespace: "default", Job: job, Group: "g", Task: "t", Allocation: alloc.ID, Verified: true,
		}, noted)
		if job == "absent-image" {
			must.StrContains(t, b.command(t, "claim", "release", c.ID), "Released claim "+c.ID)
		} else {
			b.run(t, b.wholeGPU(job))
			b.remove(t, job)
		}
		must.Nil(t, b.of(t, claim.OwnerNomad))
		b.purge(t, job)
	}
}

// The claim of a job that has ended goes with its allocation, when Nomad collects that.
func (b *beside) testCollected(t *testing.T) {
	start(t, b.Node, task{job: "collected", image: "tranche.local/absent:1", devices: []string{onGPU(140, 0)}})
	_, err := b.WaitStatus(deadline(t), "collected", "failed")
	must.NoError(t, err)
	b.state(t, claim.StateDormant)
	b.purge(t, "collected")
	must.NoError(t, b.Agent.API.System().GarbageCollect())
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // the device plugin looks once a minute
	defer cancel()
	must.NoError(t, until(ctx, func() (bool, error) { return b.of(t, claim.OwnerNomad) == nil, nil }))
}

// A task that Nomad restarts in place gets its slices back if nobody has them, and says who has them otherwise.
func (b *beside) testRestartInPlace(t *testing.T) {
	const restart = "restart {\n attempts = 5\n interval = \"1h\"\n delay = \"30s\"\n mode = \"fail\"\n}"
	hcl := task{job: "again", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(140, 0)}}.hcl()
	before, after, found := strings.Cut(hcl, "restart {")
	must.True(t, found)
	_, after, _ = strings.Cut(after, "}")
	job, err := b.ParseJob(before + restart + after)
	must.NoError(t, err)
	_, err = b.Run(deadline(t), job)
	must.NoError(t, err)
	alloc := running(t, b.Node, "again")
	saysLine(t, b.Node, alloc.ID, `"computing"`)
	first := b.of(t, claim.OwnerNomad)

	// Docker comes and goes while Nomad waits to restart the task.
	must.NoError(t, syscall.Kill(first.Container.InitPID, syscall.SIGKILL))
	b.state(t, claim.StateDormant)
	b.run(t, b.wholeGPU("between"))
	must.Nil(t, b.of(t, claim.OwnerNomad))
	b.remove(t, "between")
	back := b.state(t, claim.StateRunning)
	must.Eq(t, first.ID, back.ID)
	must.Eq(t, first.Slices, back.Slices)
	must.NotEq(t, first.Container.InitPID, back.Container.InitPID)
	must.NoError(t, until(deadline(t), func() (bool, error) {
		groups := held(t, b.Node, alloc.ID)
		return len(groups) == 1 && groups[first.GPU.UUID].Bytes == 140*gib, nil
	}))

	// Docker stays.
	must.NoError(t, syscall.Kill(back.Container.InitPID, syscall.SIGKILL))
	b.state(t, claim.StateDormant)
	b.run(t, b.wholeGPU("stays"))
	made := b.of(t, claim.OwnerExternal)
	failsWith(t, b.Node, "again", fmt.Sprintf("of claim %s were given to claim %s", first.ID, made.ID), "stop the job and run it again")
	must.Eq(t, made, b.of(t, claim.OwnerExternal))
	b.remove(t, "stays")
	b.purge(t, "again")
}
