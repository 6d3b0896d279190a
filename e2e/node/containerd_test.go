package node

import (
	"context"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

func TestContainerd_KillRestartStop(t *testing.T) {
	needs.Programs(t, "to start containerd")
	ctx := namespaces.WithNamespace(context.Background(), "default")
	c, err := StartContainerd(ctx, t.TempDir(), ContainerdOptions{})
	must.NoError(t, err)
	client, err := c.Client()
	must.NoError(t, err)
	defer client.Close()
	_, err = client.Version(ctx)
	must.NoError(t, err)

	must.NoError(t, c.Kill())
	_, err = client.Version(ctx)
	must.Error(t, err)

	must.NoError(t, c.Restart(ctx))
	first := c.PID()
	serving, err := client.IsServing(ctx)
	must.NoError(t, err)
	must.True(t, serving)

	must.NoError(t, c.Restart(ctx))
	must.NotEq(t, first, c.PID())
	must.NoError(t, c.Stop())
	must.Zero(t, c.PID())
}

func TestContainerd_StopAfterSomebodyElseKilledIt(t *testing.T) {
	needs.Programs(t, "to start containerd")
	c, err := StartContainerd(context.Background(), t.TempDir(), ContainerdOptions{})
	must.NoError(t, err)
	must.NoError(t, syscall.Kill(c.PID(), syscall.SIGKILL))
	<-c.exited
	must.Zero(t, c.PID())
	must.NoError(t, c.Stop())
}

func TestStartContainerd_SaysWhyNot(t *testing.T) {
	_, err := StartContainerd(context.Background(), t.TempDir(), ContainerdOptions{Binary: "/bin/false"})
	must.ErrorContains(t, err, "exited at once")
}
