package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/task"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/nomadtest"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
	"github.com/tranche-gpu/tranche/internal/size"
)

// testNode is what all tests of this package share: a private containerd and a registry that holds a busybox image.
type testNode struct {
	dir        string
	containerd *node.Containerd
	registry   *images.LocalRegistry
	busybox    v1.Image
	reference  string
}

var sharedNode struct {
	sync.Once
	node *testNode
	err  error
}

func TestMain(m *testing.M) {
	if status, ok := playRole(); ok {
		proctest.Exit(status)
	}
	// Nomad's harness leaves directories behind; here they go with ours.
	dir, err := os.MkdirTemp("", "driver")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if n := sharedNode.node; n != nil {
		err = n.stop()
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, "the tests left something behind:", err)
		code = 1
	}
	os.Exit(code)
}

// requireNode returns the shared node.
func requireNode(t *testing.T) *testNode {
	t.Helper()
	needs.Programs(t, "to start containers")
	sharedNode.Do(func() { sharedNode.node, sharedNode.err = startTestNode() })
	must.NoError(t, sharedNode.err)
	return sharedNode.node
}

func startTestNode() (*testNode, error) {
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		return nil, err
	}
	n := &testNode{dir: dir}
	if n.busybox, err = images.Busybox(); err != nil {
		return nil, err
	}
	if n.registry, err = images.Registry(); err != nil {
		return nil, err
	}
	if n.reference, err = n.registry.Push(context.Background(), n.busybox, "busybox:test"); err != nil {
		return nil, err
	}
	// Any other containerd can be put to the same tests: TRANCHE_TEST_CONTAINERD names its binary.
	n.containerd, err = node.StartContainerd(context.Background(), filepath.Join(dir, "c"),
		node.ContainerdOptions{Binary: os.Getenv("TRANCHE_TEST_CONTAINERD")})
	return n, err
}

func (n *testNode) stop() error {
	if n.containerd != nil {
		if err := n.containerd.Stop(); err != nil {
			return err
		}
	}
	if err := n.registry.Close(); err != nil {
		return err
	}
	return os.RemoveAll(n.dir)
}

// push puts a variant of the busybox image into the registry.
func (n *testNode) push(t *testing.T, name string, edit func(*v1.Config)) string {
	t.Helper()
	img, err := images.WithConfig(n.busybox, edit)
	must.NoError(t, err)
	ref, err := n.registry.Push(context.Background(), img, name)
	must.NoError(t, err)
	return ref
}

// config is a plugin configuration for the node.
func (n *testNode) config() spec.Config {
	return spec.Config{
		ContainerdAddress: n.containerd.Address,
		Namespace:         "nomad-test",
		Runtime:           ociruntime.Runc,
		Snapshotter:       spec.DefaultSnapshotter,
		RegistryHostsDir:  filepath.Join(n.dir, "certs.d"),
		ImagePullTimeout:  "1m",
		AllowCaps:         capabilities.NomadDefaults().Slice(false),
		StateDir:          filepath.Join(n.dir, "state"),
		RunDir:            filepath.Join(n.dir, "run"),
		GC:                spec.GC{Container: true},
	}
}

// testDriver is a driver behind Nomad's test harness, as the agent sees it, and a client of its own to look behind it.
type testDriver struct {
	*dtestutil.DriverHarness
	t *testing.T
	// whole is the test with which the driver ends; t may be a subtest of it.
	whole  *testing.T
	node   *testNode
	driver *Driver
	client *containerd.Client
	ctx    context.Context
	events *eventLog
}

// eventLog collects task events.
type eventLog struct {
	mu     sync.Mutex
	events []string
}

func (l *eventLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string{}, l.events...)
}

func testLogger() hclog.Logger {
	return hclog.NewInterceptLogger(&hclog.LoggerOptions{Name: "test", Level: hclog.Warn})
}

func newTestDriver(t *testing.T) *testDriver {
	n := requireNode(t)
	return newTestDriverWith(t, n, n.config())
}

func newTestDriverWith(t *testing.T, n *testNode, config spec.Config) *testDriver {
	t.Helper()
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(context.Background(), config.Namespace))
	impl := New(ctx, testLogger())
	d := &testDriver{DriverHarness: dtestutil.NewDriverHarness(t, impl), t: t, whole: t, node: n, driver: impl, ctx: ctx,
		events: &eventLog{}}
	client, err := n.containerd.Client()
	must.NoError(t, err)
	d.client = client
	// The harness's own Kill stops its server twice at once, which the race detector takes amiss. Cleaning up a task's
	// directories closes the connection, and that stops the server.
	t.Cleanup(func() {
		impl.Shutdown()
		client.Close()
		cancel()
	})
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, config))
	must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data, ApiVersion: drivers.ApiVersion010}))
	events, err := d.TaskEvents(ctx)
	must.NoError(t, err)
	go func() {
		for event := range events {
			d.events.mu.Lock()
			d.events.events = append(d.events.events, event.Message)
			d.events.mu.Unlock()
		}
	}()
	return d
}

// listen has an agent listen for fingerprints, as one does that uses the driver.
func (d *testDriver) listen() {
	d.t.Helper()
	fingerprints, err := d.Fingerprint(d.ctx)
	must.NoError(d.t, err)
	<-fingerprints
	go func() {
		for range fingerprints { //nolint:revive // until the driver ends
		}
	}()
}

// in returns the driver for a subtest, whose failures are then its own.
func (d *testDriver) in(t *testing.T) *testDriver {
	copied := *d
	copied.t = t
	return &copied
}

// restart returns a new driver on the same node, as after a restart of the plugin: it knows nothing yet.
func (d *testDriver) restart() *testDriver {
	d.driver.Shutdown()
	return newTestDriverWith(d.t, d.node, d.node.config())
}

// task returns the configuration of a task that runs a shell script in the busybox image.
func (d *testDriver) task(script string, edit ...func(*spec.TaskConfig)) *drivers.TaskConfig {
	return d.newTask(script, true, edit...)
}

// failing returns the configuration of a task that will not start: nobody reads its logs, as nobody writes them.
func (d *testDriver) failing(edit ...func(*spec.TaskConfig)) *drivers.TaskConfig {
	return d.newTask("true", false, edit...)
}

func (d *testDriver) newTask(script string, logs bool, edit ...func(*spec.TaskConfig)) *drivers.TaskConfig {
	options := &spec.TaskConfig{Image: d.node.reference, Command: "/bin/sh", Args: []string{"-c", script}}
	for _, e := range edit {
		e(options)
	}
	allocID := uuid.NewString()
	cfg := &drivers.TaskConfig{
		AllocID:       allocID,
		ID:            allocID + "/task/" + uuid.NewString()[:8],
		Name:          "task",
		TaskGroupName: "group",
		JobID:         "job",
		Namespace:     "default",
		Resources:     nomadtest.Resources(drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 64 * size.MiB}, 100, 64, 0),
	}
	must.NoError(d.t, cfg.EncodeConcreteDriverConfig(options))
	// The harness closes its connection to the driver along with a task's directories.
	removeDirs := d.MkAllocDir(cfg, logs)
	d.whole.Cleanup(func() {
		endLogs(cfg)
		removeDirs()
	})
	return cfg
}

// endLogs opens the task's pipes and closes them. Nomad's log process waits at a pipe that nobody has opened, and the harness two
// seconds for each such wait.
func endLogs(cfg *drivers.TaskConfig) {
	for _, pipe := range []string{cfg.StdoutPath, cfg.StderrPath} {
		if fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Close(fd)
		}
	}
}

// start starts the task and sees to it that it goes away with the test.
func (d *testDriver) start(cfg *drivers.TaskConfig) *drivers.TaskHandle {
	d.t.Helper()
	handle, _, err := d.StartTask(cfg)
	must.NoError(d.t, err)
	d.t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
	return handle
}

// wait waits for the task's exit result.
func (d *testDriver) wait(cfg *drivers.TaskConfig) *drivers.ExitResult {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	results, err := d.WaitTask(ctx, cfg.ID)
	must.NoError(d.t, err)
	select {
	case result := <-results:
		return result
	case <-ctx.Done():
		d.t.Fatal("the task did not end")
		return nil
	}
}

// stdout waits until the task's log holds want, and returns the log.
func (d *testDriver) stdout(cfg *drivers.TaskConfig, want string) string {
	d.t.Helper()
	return d.log(cfg, "stdout", want)
}

func (d *testDriver) log(cfg *drivers.TaskConfig, stream, want string) string {
	d.t.Helper()
	file := filepath.Join(cfg.TaskDir().LogDir, cfg.Name+"."+stream+".0")
	var text string
	eventually(d.t, fmt.Sprintf("%q in the task's %s", want, stream), func() bool {
		data, _ := os.ReadFile(file)
		text = string(data)
		return strings.Contains(text, want)
	})
	return text
}

// run runs a task to its end and returns its result and what it wrote to stdout, which must hold want.
func (d *testDriver) run(cfg *drivers.TaskConfig, want string) (*drivers.ExitResult, string) {
	d.t.Helper()
	d.start(cfg)
	result := d.wait(cfg)
	return result, d.stdout(cfg, want)
}

// eventually waits for what another process does, of which no event tells.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !waitFor(condition) {
		t.Fatalf("waited in vain for %s", what)
	}
}

// waitFor reports whether the condition comes true.
func waitFor(condition func() bool) bool {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}

// nothingLeft asserts that nothing of the task is in containerd.
func (d *testDriver) nothingLeft(cfg *drivers.TaskConfig) {
	d.t.Helper()
	must.SliceEmpty(d.t, d.left(cfg))
}

// eventuallyNothingLeft waits until a removal that continues in the background is over.
func (d *testDriver) eventuallyNothingLeft(cfg *drivers.TaskConfig) {
	d.t.Helper()
	if !waitFor(func() bool { return len(d.left(cfg)) == 0 }) {
		d.nothingLeft(cfg)
	}
}

// left lists what is in containerd of the task: its container, with its processes, its snapshot, its leases.
func (d *testDriver) left(cfg *drivers.TaskConfig) []string {
	d.t.Helper()
	var left []string
	id := naming.ContainerID(cfg)
	_, err := d.client.LoadContainer(d.ctx, id)
	if !errdefs.IsNotFound(err) {
		must.NoError(d.t, err)
		left = append(left, "container "+id)
	}
	_, err = d.client.SnapshotService(spec.DefaultSnapshotter).Stat(d.ctx, id)
	if !errdefs.IsNotFound(err) {
		must.NoError(d.t, err)
		left = append(left, "snapshot "+id)
	}
	leases, err := d.client.LeasesService().List(d.ctx, fmt.Sprintf("labels.%q==%q", naming.TaskID, cfg.ID))
	must.NoError(d.t, err)
	for _, lease := range leases {
		left = append(left, "lease "+lease.ID)
	}
	return left
}

func touch(t *testing.T, file string) {
	t.Helper()
	must.NoError(t, os.WriteFile(file, nil, 0o644))
}

// pidOf is the process ID of the task's first process.
func pidOf(t *testing.T, handle *drivers.TaskHandle) int {
	t.Helper()
	var state task.State
	must.NoError(t, handle.GetDriverState(&state))
	return int(state.PID)
}

// alive reports whether the process runs, a zombie not counting.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// killTaskBehindTheDriver removes the task's processes and its shim, and leaves the record of the container.
func (d *testDriver) killTaskBehindTheDriver(cfg *drivers.TaskConfig) {
	d.t.Helper()
	container, err := d.client.LoadContainer(d.ctx, naming.ContainerID(cfg))
	must.NoError(d.t, err)
	task, err := container.Task(d.ctx, nil)
	must.NoError(d.t, err)
	_, err = task.Delete(d.ctx, containerd.WithProcessKill)
	must.NoError(d.t, err)
}
