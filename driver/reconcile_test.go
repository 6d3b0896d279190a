package driver

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"github.com/google/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// The kinds of orphans.
const (
	kindContainer = "container"
	kindSnapshot  = "snapshot"
	kindLease     = "lease"
)

// reconciled returns a driver in a namespace of its own whose agent keeps its allocations in the directory returned.
func reconciled(t *testing.T, edit func(*spec.Config)) (*testDriver, string) {
	t.Helper()
	n := requireNode(t)
	config := n.config()
	config.Namespace = "nomad-reconciled"
	if edit != nil {
		edit(&config)
	}
	d := newTestDriverWith(t, n, config)
	root := t.TempDir()
	d.driver.agents.NoteTask(&drivers.TaskConfig{AllocDir: filepath.Join(root, "a")})
	t.Cleanup(func() { d.removeRecords() })
	return d, root
}

// record makes what a plugin process that died could have left of a task: the record of a container, a snapshot or a
// lease.
func (d *testDriver) record(ctx context.Context, kind, id string, labels map[string]string) {
	d.t.Helper()
	var err error
	switch kind {
	case kindContainer:
		spec, marshalErr := typeurl.MarshalAny(&specs.Spec{})
		must.NoError(d.t, marshalErr)
		_, err = d.client.ContainerService().Create(ctx, containers.Container{ID: id, Labels: labels, Spec: spec,
			Runtime: containers.RuntimeInfo{Name: ociruntime.Runc}})
	case kindSnapshot:
		// containerd itself removes a snapshot that nothing refers to.
		all := maps.Clone(labels)
		if all == nil {
			all = map[string]string{}
		}
		all["containerd.io/gc.root"] = "test"
		_, err = d.client.SnapshotService(spec.DefaultSnapshotter).Prepare(ctx, id, "", snapshots.WithLabels(all))
	case kindLease:
		_, err = d.client.LeasesService().Create(ctx, leases.WithID(id), leases.WithLabels(labels))
	}
	must.NoError(d.t, err)
}

// records lists what is there.
func (d *testDriver) records() (all []string) {
	d.t.Helper()
	for _, trace := range d.traces() {
		if kind, _, _ := strings.Cut(trace, " "); slices.Contains([]string{kindContainer, kindSnapshot, kindLease}, kind) {
			all = append(all, trace)
		}
	}
	slices.Sort(all)
	return all
}

func (d *testDriver) removeRecords() {
	for _, record := range d.records() {
		switch kind, id, _ := strings.Cut(record, " "); kind {
		case kindContainer:
			_ = d.client.ContainerService().Delete(d.ctx, id)
		case kindSnapshot:
			_ = d.client.SnapshotService(spec.DefaultSnapshotter).Remove(d.ctx, id)
		case kindLease:
			_ = d.client.LeasesService().Delete(d.ctx, leases.Lease{ID: id})
		}
	}
}

func TestReconcile_WhatItRemoves(t *testing.T) {
	gone := func(t *testing.T) string { return filepath.Join(t.TempDir(), "alloc") }
	living := func(t *testing.T) string { return t.TempDir() }
	ours := ""
	cases := []struct {
		name    string
		labels  map[string]string
		dir     func(*testing.T) string
		grace   time.Duration
		config  func(*spec.Config)
		removed bool
	}{
		{"of this agent", nil, func(*testing.T) string { return ours }, 0, nil, true},
		{"of an allocation that is gone", nil, gone, 0, nil, true},
		{"of an allocation on a file system that is not mounted", nil,
			func(t *testing.T) string { return filepath.Join(t.TempDir(), "mount/alloc") }, 0, nil, false},
		{"of another agent", nil, living, 0, nil, false},
		{"of nobody who says so", map[string]string{naming.AllocDir: ""}, gone, 0, nil, false},
		{"of another driver", map[string]string{naming.Owned: "other"}, gone, 0, nil, false},
		{"without labels of ours", map[string]string{naming.Owned: "", naming.AllocDir: ""}, gone, 0, nil, false},
		{"younger than the grace", nil, gone, time.Hour, nil, false},
		{"in a dry run", nil, gone, 0, func(c *spec.Config) { c.GC.DanglingContainers.DryRun = true }, false},
	}
	for _, kind := range []string{kindContainer, kindSnapshot, kindLease} {
		for _, c := range cases {
			t.Run(kind+" "+c.name, func(t *testing.T) {
				d, root := reconciled(t, c.config)
				ours = filepath.Join(root, "b")
				labels := map[string]string{naming.Owned: PluginName, naming.AllocDir: c.dir(t), naming.AllocID: "a", naming.Task: "t"}
				maps.Copy(labels, c.labels)
				maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
				d.record(d.ctx, kind, "left", labels)
				removed, err := d.driver.reconciler.Once(d.ctx, c.grace)
				must.NoError(t, err)
				if c.removed {
					must.Eq(t, []string{kind + " left"}, removed)
					must.SliceEmpty(t, d.records())
				} else {
					must.SliceEmpty(t, removed)
					must.Eq(t, []string{kind + " left"}, d.records())
				}
			})
		}
	}
}

func TestReconcile_LeavesOtherNamespacesAlone(t *testing.T) {
	d, root := reconciled(t, nil)
	other := *d
	other.ctx = namespaces.WithNamespace(d.ctx, "k8s.io")
	t.Cleanup(other.removeRecords)
	labels := map[string]string{naming.Owned: PluginName, naming.AllocDir: filepath.Join(root, "b")}
	want := []string{"container left", "lease left", "snapshot left-too"}
	for _, record := range want {
		kind, id, _ := strings.Cut(record, " ")
		other.record(other.ctx, kind, id, labels)
	}
	removed, err := d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	must.SliceEmpty(t, removed)
	must.Eq(t, want, other.records())
}

func TestReconcile_LeavesTasksAlone(t *testing.T) {
	d, _ := reconciled(t, nil)
	cfg := d.stubborn()
	d.start(cfg)
	d.runsOnce(cfg)
	removed, err := d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	must.SliceEmpty(t, removed)
	d.runsOnce(cfg)

	// One that is being started has a container and no handle yet.
	starting := d.stubborn()
	d.driver.failpoints = func(p failpoint.Point) {
		if p == failpoint.StartTaskStarted {
			removed, err = d.driver.reconciler.Once(d.ctx, 0)
		}
	}
	d.start(starting)
	must.NoError(t, err)
	must.SliceEmpty(t, removed)
	d.stdout(starting, "life ")
}

func TestReconcile_KeptContainers(t *testing.T) {
	d, _ := reconciled(t, func(c *spec.Config) { c.GC.Container = false })
	cfg := d.newTask("echo content >/kept; exit 4", false)
	d.start(cfg)
	must.Eq(t, 4, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	id := naming.ContainerID(cfg)
	want := []string{"container " + id, "snapshot " + id}
	must.Eq(t, want, d.records(), must.Sprint("not what gc.container = false keeps"))
	eventually(t, "the end of what costs more than disk", func() bool {
		return len(d.traces()) == len(want) && len(taskCgroups(t, cfg)) == 0
	})
	_, err := d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	must.Eq(t, want, d.records())

	// The next run of the task does not remove it as an orphan.
	again := *cfg
	again.ID = cfg.AllocID + "/task/again"
	d.start(&again)
	must.SliceContainsSubset(t, d.records(), want)
	must.NoError(t, d.DestroyTask(again.ID, true))

	collecting, _ := reconciled(t, nil)
	collecting.driver.agents.NoteTask(cfg)
	_, err = collecting.driver.reconciler.Once(collecting.ctx, 0)
	must.NoError(t, err)
	collecting.noTraces(cfg)
}

func TestReconcile_ByItself(t *testing.T) {
	d, root := reconciled(t, func(c *spec.Config) {
		c.GC.DanglingContainers = spec.DanglingContainers{Enabled: true, Period: "50ms", CreationGrace: "50ms"}
	})
	labels := map[string]string{naming.Owned: PluginName, naming.AllocDir: filepath.Join(root, "b")}
	for _, id := range []string{"first", "second"} {
		d.record(d.ctx, kindContainer, id, labels)
		eventually(t, "the removal of the container", func() bool { return len(d.records()) == 0 })
	}
	d.driver.Shutdown() // It waits for the reconciler.
	d.record(d.ctx, kindContainer, "third", labels)
	must.Eq(t, []string{"container third"}, d.records())
}

// An agent that is killed before it has written down a task's handle does not know the task when it is back.
func TestReconcile_TasksThatTheAgentLost(t *testing.T) {
	d, _ := reconciled(t, nil)
	cfg := d.stubborn()
	d.start(cfg)
	h, ok := d.driver.tasks.Get(cfg.ID)
	must.True(t, ok)
	survives := func(why string) {
		t.Helper()
		_, err := d.driver.reconciler.Once(d.ctx, 0)
		must.NoError(t, err)
		must.Eq(t, 1, len(d.driver.tasks.All()), must.Sprint(why))
	}
	// listens has an agent listen whose queries so far are all long ago, as those of an earlier agent.
	listens := func() (end func()) {
		time.Sleep(1100 * time.Millisecond) // the agent may query tasks a second before it listens
		ctx, cancel := context.WithCancel(d.ctx)
		fingerprints, err := d.driver.Fingerprint(ctx)
		must.NoError(t, err)
		<-fingerprints
		return func() {
			cancel()
			for range fingerprints { //nolint:revive // until the agent listens no more
			}
		}
	}
	survives("no agent is there, and tasks run on without one")

	waiting, stop := context.WithCancel(d.ctx)
	results, err := d.driver.WaitTask(waiting, cfg.ID)
	must.NoError(t, err)
	end := listens()
	survives("the agent waits for the task's end")
	handle, err := h.NomadHandle()
	must.NoError(t, err)
	must.NoError(t, d.driver.RecoverTask(handle))
	stop()
	<-results
	eventually(t, "the end of the wait", func() bool { return h.NotQueriedSince(time.Now()) })
	survives("the agent has taken the task back")

	end()
	defer listens()()
	_, err = d.driver.reconciler.Once(d.ctx, time.Hour)
	must.NoError(t, err)
	must.Len(t, 1, d.driver.tasks.All(), must.Sprint("the agent has not been there for long"))
	survivesNot, err := d.driver.reconciler.Once(d.ctx, 0)
	must.NoError(t, err)
	must.SliceEmpty(t, survivesNot)
	must.SliceEmpty(t, d.driver.tasks.All())
	d.noTraces(cfg)
}

// An agent that is killed in the midst of StartTask starts the task again when it is back, by another ID. The plugin has
// lived on.
func TestStart_AgainByAnotherAgent(t *testing.T) {
	d, _ := reconciled(t, nil)
	anew := func(cfg *drivers.TaskConfig) *drivers.TaskConfig {
		again := *cfg
		again.ID = cfg.AllocID + "/" + cfg.Name + "/" + uuid.NewString()[:8]
		return &again
	}
	t.Run("after the start", func(t *testing.T) {
		d := d.in(t)
		cfg := d.stubborn()
		d.start(cfg)
		d.runsOnce(cfg)
		must.NoError(t, os.Remove(filepath.Join(cfg.TaskDir().LocalDir, "life")))
		again := anew(cfg)
		d.start(again)
		d.runsOnce(again)
		must.NoError(t, d.DestroyTask(again.ID, true))
		d.noTraces(cfg)
	})
	t.Run("in the midst of a pull", func(t *testing.T) {
		d := d.in(t)
		pulling := make(chan struct{}, 100)
		registry := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			pulling <- struct{}{}
			<-r.Context().Done()
		}))
		defer registry.Close()
		cfg := d.stubborn()
		slow := anew(cfg)
		must.NoError(t, slow.EncodeConcreteDriverConfig(&spec.TaskConfig{
			Image: strings.TrimPrefix(registry.URL, "http://") + "/slow:1", Command: "true"}))
		failed := make(chan error, 1)
		go func() {
			_, _, err := d.driver.StartTask(slow)
			failed <- err
		}()
		<-pulling
		d.start(cfg)
		must.ErrorContains(t, <-failed, errSuperseded.Error())
		d.runsOnce(cfg)
		must.NoError(t, d.DestroyTask(cfg.ID, true))
		d.noTraces(cfg)
	})
}
