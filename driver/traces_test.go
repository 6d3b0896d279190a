package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/size"
)

// traces lists everything on the node that a task could have left, in containerd and outside. While no task is there it
// is to be empty. What cannot be listed counts too: containerd may have restarted just now.
func (d *testDriver) traces() []string {
	d.t.Helper()
	var all []string
	add := func(kind string, ids ...string) {
		for _, id := range ids {
			all = append(all, kind+" "+id)
		}
	}
	for kind, list := range map[string]func(context.Context) ([]string, error){
		"container": d.listContainers, "task": d.listTasks, "snapshot": d.listSnapshots, "lease": d.listLeases,
		"ingest": d.listIngests,
	} {
		ids, err := list(d.ctx)
		if err != nil {
			add(kind, err.Error())
		}
		add(kind, ids...)
	}
	shims, err := d.node.containerd.Shims()
	must.NoError(d.t, err)
	for _, pid := range shims {
		add("shim", fmt.Sprint(pid))
	}
	for _, pattern := range []string{"root", "state"} {
		bundles, err := filepath.Glob(filepath.Join(d.node.containerd.Dir, pattern, "io.containerd.runtime.v2.task", "*", "*"))
		must.NoError(d.t, err)
		add("bundle", bundles...)
	}
	pipes, err := filepath.Glob(filepath.Join(d.driver.plugin.ExecDir, "*"))
	must.NoError(d.t, err)
	add("pipes", pipes...)
	add("mount", d.mounts()...)
	add("network namespace", networkNamespaces(d.t)...)
	return all
}

func (d *testDriver) listContainers(ctx context.Context) (ids []string, err error) {
	all, err := d.client.ContainerService().List(ctx)
	for _, c := range all {
		ids = append(ids, c.ID)
	}
	return ids, err
}

func (d *testDriver) listTasks(ctx context.Context) (ids []string, err error) {
	all, err := d.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	for _, t := range all.GetTasks() {
		ids = append(ids, t.ID)
	}
	return ids, err
}

// listSnapshots lists those that are no layers of images.
func (d *testDriver) listSnapshots(ctx context.Context) (ids []string, err error) {
	err = d.client.SnapshotService(spec.DefaultSnapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			ids = append(ids, info.Name)
		}
		return nil
	})
	return ids, err
}

func (d *testDriver) listLeases(ctx context.Context) (ids []string, err error) {
	all, err := d.client.LeasesService().List(ctx)
	for _, l := range all {
		ids = append(ids, l.ID)
	}
	return ids, err
}

func (d *testDriver) listIngests(ctx context.Context) (ids []string, err error) {
	all, err := d.client.ContentStore().ListStatuses(ctx)
	for _, s := range all {
		ids = append(ids, s.Ref)
	}
	return ids, err
}

// mounts are those below containerd's directory, where it mounts the root file systems of containers.
func (d *testDriver) mounts() (points []string) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	must.NoError(d.t, err)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], d.node.containerd.Dir+"/") {
			points = append(points, fields[4])
		}
	}
	return points
}

// networkNamespaces are those of the processes here, the tests' own left out.
func networkNamespaces(t *testing.T) (names []string) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	must.NoError(t, err)
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	must.NoError(t, err)
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && name != own {
			names = append(names, name+" of "+link)
		}
	}
	return names
}

// taskCgroups are the cgroups that go by the name of the task's allocation, in whatever hierarchy.
func taskCgroups(t *testing.T, cfg *drivers.TaskConfig) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(cgroup.Root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // It went meanwhile.
		}
		if err == nil && entry.IsDir() && strings.Contains(entry.Name(), cfg.AllocID) {
			dirs = append(dirs, path)
		}
		return err
	})
	must.NoError(t, err)
	return dirs
}

// noTraces asserts that nothing at all of the task is left, nor of any other.
func (d *testDriver) noTraces(cfg *drivers.TaskConfig) {
	d.t.Helper()
	var left []string
	found := waitFor(func() bool {
		left = append(d.traces(), taskCgroups(d.t, cfg)...)
		return len(left) == 0
	})
	must.True(d.t, found, must.Sprintf("this is left: %q", left))
}

// testClaims is a ledger with one claim for each task that asks.
type testClaims struct {
	*claim.Ledger
}

// newTestClaims makes the node one with a GPU, whose claims are bound and released by the hook itself.
func newTestClaims(t *testing.T, config *spec.Config) testClaims {
	t.Helper()
	gpuNode(t, config)
	config.HookPath = linkRole(t, roleHook)
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	return testClaims{ledger}
}

// reserve gives the task the GPU's one slice, as the device plugin does. It fails if a living container has it.
func (c testClaims) reserve(t *testing.T, cfg *drivers.TaskConfig) {
	t.Helper()
	_, token, err := c.Reserve(t.Context(), claim.Request{
		GPU:    claim.GPU{UUID: testGPU, Index: 0, Name: "NVIDIA H200", ContextBytes: 300 * size.MiB},
		Slices: []string{testGPU + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal(), claim.VisibleDevices: claim.NoDevices}
}

// holder is the container that holds the claim, "" if none does.
func (c testClaims) holder(t *testing.T) string {
	t.Helper()
	claims, problems, err := c.List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
	for _, made := range claims {
		if made.Container != nil && made.Released.IsZero() {
			return made.Container.ID
		}
	}
	return ""
}
