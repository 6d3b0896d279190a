//go:build e2e

package e2e

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestKilledWhileStarting kills a part of the node while it starts many tasks. Afterwards there is one container for each
// allocation that runs, and when the job has been stopped there is nothing.
func TestKilledWhileStarting(t *testing.T) {
	const count = 16
	n := startNode(t)
	cases := []struct {
		name string
		kill func(t *testing.T)
		// running is how many allocations run in the end at the least. What Nomad places before it has noticed the
		// death of a plugin fails, and that is Nomad's own matter.
		running int
	}{
		{"agent", func(t *testing.T) {
			n.Agent.Kill()
			must.NoError(t, n.Agent.Start(deadline(t)))
		}, count},
		{"nomad-driver-tranche", func(t *testing.T) { killPlugin(t, n, "nomad-driver-tranche") }, 1},
		{"containerd", func(t *testing.T) {
			must.NoError(t, n.Containerd.Kill())
			must.NoError(t, n.Containerd.Restart(deadline(t)))
		}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := "burst-" + c.name
			start(t, n, task{job: job, command: "sleep", args: []string{"600"}, count: count, memoryMiB: 32})
			running(t, n, job)
			c.kill(t)
			must.NoError(t, n.WaitReady(deadline(t)))
			alive := 0
			must.NoError(t, until(deadline(t), func() (bool, error) {
				allocs, _, err := n.Agent.API.Jobs().Allocations(job, false, nil)
				alive = 0
				for _, alloc := range allocs {
					switch alloc.ClientStatus {
					case "running":
						alive++
					case "pending":
						return false, err
					}
				}
				return len(allocs) == count, err
			}))
			must.GreaterEq(t, c.running, alive)
			must.NoError(t, until(deadline(t), func() (bool, error) {
				containers, other, err := inContainerd(n)
				return containers == alive && other == alive, err
			}), must.Sprint("not one container for each allocation that runs"))

			must.NoError(t, n.StopJob(deadline(t), job))
			must.NoError(t, until(deadline(t), func() (bool, error) {
				containers, other, err := inContainerd(n)
				return containers == 0 && other == 0, err
			}), must.Sprint("something is left in containerd"))
		})
	}
}

// inContainerd counts the containers, and the snapshots of containers and the leases.
func inContainerd(n *node.Node) (containers, other int, err error) {
	client, err := n.Containerd.Client()
	if err != nil {
		return 0, 0, err
	}
	defer client.Close()
	ctx := namespaces.WithNamespace(context.Background(), "nomad")
	all, err := client.Containers(ctx)
	if err != nil {
		return 0, 0, err
	}
	leases, err := client.LeasesService().List(ctx)
	if err != nil {
		return 0, 0, err
	}
	other = len(leases)
	err = client.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			other++
		}
		return nil
	})
	return len(all), other, err
}
