package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/failpoint"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// collecting is a driver that removes images after the delay.
func collecting(t *testing.T, delay string) *testDriver {
	n := requireNode(t)
	config := n.config()
	config.GC.Image, config.GC.ImageDelay = true, delay
	d := newTestDriverWith(t, n, config)
	d.listen()
	return d
}

func (d *testDriver) hasImage(ref string) bool {
	d.t.Helper()
	_, err := d.client.ImageService().Get(d.ctx, ref)
	if !errdefs.IsNotFound(err) {
		must.NoError(d.t, err)
	}
	return err == nil
}

func TestImageGC_RemovesWhatNoTaskUses(t *testing.T) {
	d := collecting(t, "200ms")
	reg := newTestRegistry(t)
	running, _ := reg.unique(t, d.node.busybox, "running:1", 1)
	foreign, _ := reg.unique(t, d.node.busybox, "foreign:1", 1)
	ended, layer := reg.unique(t, d.node.busybox, "ended:1", 1)
	_, err := d.client.Pull(d.ctx, foreign, containerd.WithPullUnpack)
	must.NoError(t, err)
	t.Cleanup(func() { _ = d.client.ImageService().Delete(d.ctx, foreign) })

	d.start(d.task("sleep 600", func(c *spec.TaskConfig) { c.Image = running }))
	for _, ref := range []string{foreign, ended} {
		cfg := d.task("echo done", func(c *spec.TaskConfig) { c.Image = ref })
		d.run(cfg, "done")
		// Not before the task is destroyed: Nomad may start it again.
		must.True(t, d.hasImage(ref))
		must.NoError(t, d.DestroyTask(cfg.ID, false))
	}
	eventually(t, "the removal of the image", func() bool { return !d.hasImage(ended) })
	eventually(t, "the removal of its layer", func() bool { return !d.hasContent(layer) })
	must.True(t, d.hasImage(running))
	must.True(t, d.hasImage(foreign))
	// What is gone can be had again.
	d.run(d.task("echo again", func(c *spec.TaskConfig) { c.Image = ended }), "again")
}

// TestImageGC_ForcePullMakesNothingOurs pulls an image by the driver that somebody else has put there.
func TestImageGC_ForcePullMakesNothingOurs(t *testing.T) {
	d := collecting(t, "100ms")
	reg := newTestRegistry(t)
	foreign, _ := reg.unique(t, d.node.busybox, "theirs:1", 1)
	ours, _ := reg.unique(t, d.node.busybox, "ours:1", 1)
	_, err := d.client.Pull(d.ctx, foreign, containerd.WithPullUnpack, containerd.WithPullLabel("whose", "theirs"))
	must.NoError(t, err)
	t.Cleanup(func() { _ = d.client.ImageService().Delete(d.ctx, foreign) })
	for _, ref := range []string{foreign, ours} {
		cfg := d.task("echo done", func(c *spec.TaskConfig) { c.Image, c.ForcePull = ref, true })
		d.run(cfg, "done")
		must.NoError(t, d.DestroyTask(cfg.ID, false))
	}
	eventually(t, "the removal of the other image", func() bool { return !d.hasImage(ours) })
	record, err := d.client.ImageService().Get(d.ctx, foreign)
	must.NoError(t, err)
	must.Eq(t, map[string]string{"whose": "theirs"}, record.Labels)
}

func TestImageGC_KnowsContainersOfAnEarlierPlugin(t *testing.T) {
	d := collecting(t, "100ms")
	reg := newTestRegistry(t)
	used, _ := reg.unique(t, d.node.busybox, "used:1", 1)
	ended, _ := reg.unique(t, d.node.busybox, "unused:1", 1)
	cfg := d.task("sleep 600", func(c *spec.TaskConfig) { c.Image = used })
	d.start(cfg)
	d.driver.Shutdown()

	d = collecting(t, "100ms")
	other := d.task("echo done", func(c *spec.TaskConfig) { c.Image = ended })
	d.run(other, "done")
	must.NoError(t, d.DestroyTask(other.ID, false))
	eventually(t, "the removal of the other image", func() bool { return !d.hasImage(ended) })
	record, err := d.client.ImageService().Get(d.ctx, used)
	must.NoError(t, err)
	must.MapNotContainsKey(t, record.Labels, naming.UnusedSince)
	must.NoError(t, d.DestroyTask(cfg.ID, true))
	eventually(t, "the removal of the image", func() bool { return !d.hasImage(used) })
}

// noted waits until it is written down that the image is unused.
func (d *testDriver) noted(ref string) {
	d.t.Helper()
	eventually(d.t, "the note", func() bool {
		record, err := d.client.ImageService().Get(d.ctx, ref)
		must.NoError(d.t, err)
		return record.Labels[naming.UnusedSince] != ""
	})
}

func TestImageGC_NotesTheEndOfATask(t *testing.T) {
	d := collecting(t, "1h")
	reg := newTestRegistry(t)
	ref, _ := reg.unique(t, d.node.busybox, "noted:1", 1)
	cfg := d.task("echo done", func(c *spec.TaskConfig) { c.Image = ref })
	d.run(cfg, "done")
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.noted(ref)
}

func TestImageGC_GoesOnAfterARestart(t *testing.T) {
	d := collecting(t, "5s")
	reg := newTestRegistry(t)
	ref, _ := reg.unique(t, d.node.busybox, "goes-on:1", 1)
	cfg := d.task("echo done", func(c *spec.TaskConfig) { c.Image = ref })
	d.run(cfg, "done")
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.noted(ref)
	d.driver.Shutdown()
	must.True(t, d.hasImage(ref))

	d = collecting(t, "5s")
	eventually(t, "the removal of the image", func() bool { return !d.hasImage(ref) })
}

// TestImageGC_NeverUnderAStart removes an image whenever that may be, again and again, while tasks come and go.
func TestImageGC_NeverUnderAStart(t *testing.T) {
	d := collecting(t, "1h")
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "hammered:1", 1)
	var hammering sync.WaitGroup
	defer hammering.Wait()
	ctx, stop := context.WithCancel(d.ctx)
	defer stop()
	hammering.Go(func() {
		for ctx.Err() == nil {
			if record, err := d.client.ImageService().Get(ctx, ref); err == nil {
				_, _ = d.driver.images.RemoveUnused(ctx, record, time.Now().Add(time.Hour))
			}
		}
	})
	const rounds, tasks = 12, 3
	for range rounds {
		var working sync.WaitGroup
		errs := make([]error, tasks)
		for i := range tasks {
			cfg := d.failing(func(c *spec.TaskConfig) { c.Image = ref })
			cfg.StdoutPath, cfg.StderrPath = "", ""
			working.Go(func() {
				if _, _, err := d.driver.StartTask(cfg); err != nil {
					errs[i] = fmt.Errorf("start: %w", err)
				} else if err := d.driver.DestroyTask(cfg.ID, true); err != nil {
					errs[i] = fmt.Errorf("destroy: %w", err)
				}
			})
		}
		working.Wait()
		must.NoError(t, errors.Join(errs...))
	}
	// It has gone between rounds, and each time come back.
	must.GreaterEq(t, rounds/3, reg.gets(layer))
}

// TestImageGC_WaitsForStarts says when an image that is due may go.
func TestImageGC_WaitsForStarts(t *testing.T) {
	d := collecting(t, "1h") // Its own sweeps remove nothing.
	reg := newTestRegistry(t)
	ref, _ := reg.unique(t, d.node.busybox, "due:1", 1)
	cfg := d.task("sleep 600", func(c *spec.TaskConfig) { c.Image = ref })
	d.start(cfg)
	record, err := d.client.ImageService().Get(d.ctx, ref)
	must.NoError(t, err)
	must.Eq(t, PluginName, record.Labels[naming.Owned])

	try := func() bool {
		t.Helper()
		_, err := d.driver.images.RemoveUnused(d.ctx, record, time.Now())
		must.NoError(t, err)
		return !d.hasImage(ref)
	}
	must.False(t, try(), must.Sprint("a container names it"))
	must.NoError(t, d.DestroyTask(cfg.ID, true))

	_, release, err := d.driver.hold(d.ctx, &startup{id: "starting", cfg: cfg, options: &spec.TaskConfig{Image: ref}})
	must.NoError(t, err)
	must.False(t, try(), must.Sprint("a task is starting"))
	release()

	wait, err := d.driver.images.RemoveUnused(d.ctx, record, time.Now().Add(-2*time.Hour))
	must.NoError(t, err)
	must.True(t, d.hasImage(ref), must.Sprint("it has been used since it was found due"))
	must.Less(t, time.Minute, (time.Hour - wait).Abs())

	record.Target.Digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	must.False(t, try(), must.Sprint("it is another image now"))
	record, err = d.client.ImageService().Get(d.ctx, ref)
	must.NoError(t, err)
	must.True(t, try())
}

// TestImageGC_GoesOnDuringAPull removes an image while another that shares layers with it is pulled.
func TestImageGC_GoesOnDuringAPull(t *testing.T) {
	d := collecting(t, "1h") // Its own sweeps remove nothing.
	reg := newTestRegistry(t)
	shared, _ := uniqueImage(t, d.node.busybox, 1000)
	ended, _ := reg.unique(t, shared, "ended:1", 1)
	pulled, layer := reg.unique(t, shared, "pulled:1", 2)
	cfg := d.task("echo done", func(c *spec.TaskConfig) { c.Image = ended })
	d.run(cfg, "done")
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	record, err := d.client.ImageService().Get(d.ctx, ended)
	must.NoError(t, err)

	held := newGate()
	reg.spoilWith(onGet(layer, held.pass))
	cfg = d.failing(func(c *spec.TaskConfig) { c.Image = pulled })
	wait := d.startAll([]*drivers.TaskConfig{cfg})
	eventually(t, "the pull of the layer", func() bool { return reg.gets(layer) > 0 })
	_, err = d.driver.images.RemoveUnused(d.ctx, record, time.Now())
	must.NoError(t, err)
	must.False(t, d.hasImage(ended))
	close(held.opened)
	must.NoError(t, wait()[0])
}

// TestImageGC_LeavesStartsOfOthersAlone has an agent remove an image with which another begins to start a task.
func TestImageGC_LeavesStartsOfOthersAlone(t *testing.T) {
	d, other := newTestDriver(t), collecting(t, "1h")
	ref, _ := newTestRegistry(t).unique(t, d.node.busybox, "others:1", 1)
	must.NoError(t, d.startUnlogged(ref, func() error {
		record, err := other.client.ImageService().Get(other.ctx, ref)
		if err == nil {
			_, err = other.driver.images.RemoveUnused(other.ctx, record, time.Now())
		}
		return err
	}))
	must.True(t, d.hasImage(ref))
}

// startUnlogged starts a task whose image is ready when f is called, and removes it.
func (d *testDriver) startUnlogged(image string, f func() error) (err error) {
	cfg := d.failing(func(c *spec.TaskConfig) { c.Image = image })
	cfg.StdoutPath, cfg.StderrPath = "", ""
	d.driver.failpoints = func(p failpoint.Point) {
		if p == failpoint.StartImageReady {
			err = f()
		}
	}
	_, _, startErr := d.driver.StartTask(cfg)
	_ = d.driver.DestroyTask(cfg.ID, true)
	return errors.Join(err, startErr)
}

// Whatever removes an image takes nothing from a start that has found it.
func TestImage_RemovedUnderAStart(t *testing.T) {
	d := newTestDriver(t)
	ref, _ := newTestRegistry(t).unique(t, d.node.busybox, "removed:1", 1)
	must.NoError(t, d.startUnlogged(ref, func() error {
		return d.client.ImageService().Delete(d.ctx, ref, images.SynchronousDelete())
	}))
}

func (d *testDriver) pullLeases() int {
	d.t.Helper()
	found, err := d.client.LeasesService().List(d.ctx, `labels."`+naming.Pull+`"`)
	must.NoError(d.t, err)
	return len(found)
}

// dieInAPull runs a plugin process that is killed in the midst of a pull.
func (d *testDriver) dieInAPull() {
	d.t.Helper()
	reg := newTestRegistry(d.t)
	ref, layer := reg.unique(d.t, d.node.busybox, "dead:1", 1)
	reg.spoilWith(onGet(layer, newGate().pass))
	cfg := d.failing(func(c *spec.TaskConfig) { c.Image = ref })
	cmd := d.newPluginRun(&pluginRun{Config: d.node.config(), Task: cfg, Lingers: true})
	must.NoError(d.t, cmd.Start())
	kill := sync.OnceFunc(func() {
		must.NoError(d.t, cmd.Process.Kill())
		must.Error(d.t, cmd.Wait())
	})
	d.t.Cleanup(kill)
	eventually(d.t, "the pull", func() bool { return reg.gets(layer) > 0 })
	kill()
	d.t.Cleanup(func() { _ = d.client.LeasesService().Delete(d.ctx, leases.Lease{ID: naming.ContainerID(cfg)}) })
}

// Two agents may use one namespace of a containerd.
func TestPull_OfADeadPluginIsDroppedAndOthersAreNot(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "living:1", 1)
	held := newGate()
	reg.spoilWith(onGet(layer, held.pass))
	wait := d.startAll([]*drivers.TaskConfig{d.failing(func(c *spec.TaskConfig) { c.Image = ref })})
	eventually(t, "the pull", func() bool { return reg.gets(layer) > 0 })
	d.dieInAPull()
	must.Eq(t, 2, d.pullLeases())

	newTestDriver(t).listen()
	eventually(t, "the end of the dead one's lease", func() bool { return d.pullLeases() == 1 })
	close(held.opened)
	must.NoError(t, wait()[0])
	statuses, err := d.client.ContentStore().ListStatuses(d.ctx)
	must.NoError(t, err)
	must.SliceEmpty(t, statuses)
}

// Nomad also starts the plugin to have its configuration checked.
func TestImageGC_NotBeforeAnAgentListens(t *testing.T) {
	newTestDriver(t).dieInAPull()
	d := newTestDriver(t)
	d.run(d.task("echo up"), "up")
	must.Eq(t, 1, d.pullLeases())
	d.listen()
	eventually(t, "the end of the dead one's lease", func() bool { return d.pullLeases() == 0 })
}
