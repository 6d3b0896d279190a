package driver

import (
	"net/http"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// gate lets requests for a blob through once it is opened.
type gate struct{ opened chan struct{} }

func newGate() gate { return gate{make(chan struct{})} }

func (g gate) pass(w http.ResponseWriter, r *http.Request, next http.Handler) {
	select {
	case <-g.opened:
		next.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// startAll starts the tasks at once, and returns what came of each.
func (d *testDriver) startAll(tasks []*drivers.TaskConfig) (wait func() []error) {
	var starting sync.WaitGroup
	errs := make([]error, len(tasks))
	for i, cfg := range tasks {
		starting.Go(func() {
			_, _, errs[i] = d.StartTask(cfg)
		})
		d.t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
	}
	return func() []error {
		starting.Wait()
		return errs
	}
}

func TestPull_ManyTasksAreOnePull(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "shared:1", 100<<10)
	const question = "HEAD /v2/shared/manifests/1"
	asked := reg.asked(question)
	held := newGate()
	reg.spoilWith(onGet(layer, held.pass))
	const many = 20
	var tasks []*drivers.TaskConfig
	for range many {
		tasks = append(tasks, d.task("true", func(c *spec.TaskConfig) { c.Image = ref }))
	}
	wait := d.startAll(tasks)
	eventually(t, "all tasks to wait", func() bool { return d.events.said("Pulling image "+ref) == many })
	close(held.opened)
	for _, err := range wait() {
		must.NoError(t, err)
	}
	must.Eq(t, 1, reg.gets(layer))
	must.Eq(t, asked+1, reg.asked(question))
	eventually(t, "the events of all tasks", func() bool { return d.events.said("Pulled image "+ref+" (") == many })
	d.noPullLeases()
}

func TestPull_DeadlineOfTheFirstIsItsOwn(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "first:1", 100<<10)
	held := newGate()
	reg.spoilWith(onGet(layer, held.pass))
	hasty := d.failing(func(c *spec.TaskConfig) { c.Image, c.ImagePullTimeout = ref, "5s" })
	patient := d.task("true", func(c *spec.TaskConfig) { c.Image = ref })
	waitHasty := d.startAll([]*drivers.TaskConfig{hasty})
	eventually(t, "the first", func() bool { return d.events.said("Pulling image "+ref) == 1 })
	waitPatient := d.startAll([]*drivers.TaskConfig{patient})
	eventually(t, "the second", func() bool { return d.events.said("Pulling image "+ref) == 2 })

	must.ErrorContains(t, waitHasty()[0], "not done after 5s")
	close(held.opened)
	must.NoError(t, waitPatient()[0])
	must.Eq(t, 1, reg.gets(layer))
	d.nothingLeft(hasty)
}

func TestPull_AfterTheLastHasLeftTheNextBeginsAnew(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "again:1", 100<<10)
	reg.spoilWith(onGet(layer, newGate().pass))
	err := d.startFails(func(c *spec.TaskConfig) { c.Image, c.ImagePullTimeout = ref, "500ms" })
	must.ErrorContains(t, err, "not done after 500ms")
	d.nothingPulled(ref, layer)
	reg.spoilWith(nil)
	d.run(d.task("echo there", func(c *spec.TaskConfig) { c.Image = ref }), "there")
}

func TestPull_FailureIsShared(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "fails:1", 100<<10)
	held := newGate()
	reg.spoilWith(onGet(layer, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		held.pass(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(500)(w, r, next) }))
	}))
	var tasks []*drivers.TaskConfig
	for range 5 {
		tasks = append(tasks, d.failing(func(c *spec.TaskConfig) { c.Image = ref }))
	}
	wait := d.startAll(tasks)
	eventually(t, "all tasks to wait", func() bool { return d.events.said("Pulling image "+ref) == len(tasks) })
	close(held.opened)
	for i, err := range wait() {
		must.ErrorContains(t, err, "500", must.Sprint(i))
		d.nothingLeft(tasks[i])
	}
	// containerd asks a second time after such an answer.
	must.Eq(t, 2, reg.gets(layer))
	d.nothingPulled(ref, layer)
}

func TestPull_WrongCredentialsOfOneAreItsOwn(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, layer := reg.unique(t, d.node.busybox, "private/shared:1", 100<<10)
	held := newGate()
	reg.spoilWith(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		demand("user", "right")(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			onGet(layer, held.pass)(w, r, next)
		}))
	})
	with := func(password string) func(*spec.TaskConfig) {
		return func(c *spec.TaskConfig) { c.Image, c.Auth = ref, image.Auth{Username: "user", Password: password} }
	}
	waitWrong := d.startAll([]*drivers.TaskConfig{d.failing(with("wrong")), d.failing(with("wrong"))})
	waitRight := d.startAll([]*drivers.TaskConfig{d.task("true", with("right")), d.task("true", with("right"))})
	for _, err := range waitWrong() {
		must.ErrorContains(t, err, "refuses")
	}
	close(held.opened)
	for _, err := range waitRight() {
		must.NoError(t, err)
	}
	must.Eq(t, 1, reg.gets(layer))
}

func TestImage_LatestIsAskedForAgain(t *testing.T) {
	d := newTestDriver(t)
	reg := newTestRegistry(t)
	ref, first := reg.unique(t, d.node.busybox, "newest:latest", 1)
	d.run(d.task("echo one", func(c *spec.TaskConfig) { c.Image = reg.host + "/newest" }), "one")
	must.Eq(t, 1, reg.gets(first))
	_, second := reg.unique(t, d.node.busybox, "newest:latest", 2)
	d.run(d.task("wc -c < /noise", func(c *spec.TaskConfig) { c.Image = ref }), "2")
	must.Eq(t, 1, reg.gets(second))

	// Without the registry, what is there will do.
	reg.spoilWith(answer(500))
	d.run(d.task("wc -c < /noise", func(c *spec.TaskConfig) { c.Image = ref }), "2")
	must.Eq(t, 1, d.events.said("Using the image "+ref+" that is there"))
}
