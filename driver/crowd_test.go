package driver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/size"
)

const (
	// crowd is how many tasks start at once, and crowdTime how long that may take.
	crowd     = 200
	crowdTime = 3 * time.Minute
	// crowdMemoryBytes is how much memory the plugin may take then.
	crowdMemoryBytes = 150 * size.MiB
)

// pluginProcess is the plugin as Nomad runs it: a process of its own.
type pluginProcess struct {
	drivers.DriverPlugin
	pid int
}

// startPlugin starts the plugin that was built, or builds it.
func startPlugin(t *testing.T, config spec.Config) *pluginProcess {
	t.Helper()
	binary := filepath.Join(os.Getenv("TRANCHE_BUILD"), "bin/nomad-driver-tranche")
	if os.Getenv("TRANCHE_BUILD") == "" {
		binary = filepath.Join(t.TempDir(), "nomad-driver-tranche")
		out, err := exec.Command("go", "build", "-o", binary, "github.com/tranche-gpu/tranche/cmd/nomad-driver-tranche").CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  base.Handshake,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Cmd:              exec.Command(binary),
		Logger:           testLogger(),
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, testLogger()),
		},
	})
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	must.NoError(t, err)
	raw, err := protocol.Dispense(base.PluginTypeDriver)
	must.NoError(t, err)
	p := &pluginProcess{DriverPlugin: raw.(drivers.DriverPlugin), pid: client.ReattachConfig().Pid}
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, config))
	must.NoError(t, p.SetConfig(&base.Config{PluginConfig: data, ApiVersion: drivers.ApiVersion010}))
	return p
}

// memory reads a line of /proc/PID/status: VmRSS is the memory in use, VmHWM the most that ever was.
func (p *pluginProcess) memory(t *testing.T, name string) (bytes uint64) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	must.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			_, err := fmt.Sscanf(rest, "%d kB", &bytes)
			must.NoError(t, err)
			return bytes << 10
		}
	}
	t.Fatalf("/proc/%d/status has no %s", p.pid, name)
	return 0
}

// crowdTask is a task that needs no harness: its directories are bare, and nobody reads its logs.
func (n *testNode) crowdTask(t *testing.T, root string) *drivers.TaskConfig {
	t.Helper()
	allocID := uuid.NewString()
	cfg := &drivers.TaskConfig{AllocID: allocID, ID: allocID + "/task/" + uuid.NewString()[:8], Name: "task", JobID: "crowd",
		AllocDir: filepath.Join(root, allocID), Env: map[string]string{"NOMAD_ALLOC_ID": allocID},
		Resources: &drivers.Resources{LinuxResources: &drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 64 * size.MiB}}}
	dirs := cfg.TaskDir()
	for _, dir := range []string{dirs.LogDir, dirs.LocalDir, dirs.SecretsDir} {
		must.NoError(t, os.MkdirAll(dir, 0o755))
	}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(&spec.TaskConfig{Image: n.reference, Command: "/bin/sh",
		Args: []string{"-c", "echo $NOMAD_ALLOC_ID >/local/up; exec sleep 600"}}))
	return cfg
}

// atOnce calls f for each task at the same time.
func atOnce(t *testing.T, tasks []*drivers.TaskConfig, f func(*drivers.TaskConfig) error) {
	t.Helper()
	errs := make([]error, len(tasks))
	var all sync.WaitGroup
	for i, cfg := range tasks {
		all.Go(func() { errs[i] = f(cfg) })
	}
	all.Wait()
	for _, err := range errs {
		must.NoError(t, err)
	}
}

func TestCrowd(t *testing.T) {
	n := requireNode(t)
	d := newTestDriver(t) // to look behind the plugin
	config := n.config()
	p := startPlugin(t, config)
	root := t.TempDir()
	// The first one pulls the image; afterwards the plugin is warm.
	start := func(cfg *drivers.TaskConfig) error {
		_, _, err := p.StartTask(cfg)
		return err
	}
	destroy := func(cfg *drivers.TaskConfig) error { return p.DestroyTask(cfg.ID, true) }
	first := n.crowdTask(t, root)
	must.NoError(t, start(first))
	must.NoError(t, destroy(first))
	before := p.memory(t, "VmRSS")

	tasks := make([]*drivers.TaskConfig, crowd)
	for i := range tasks {
		tasks[i] = n.crowdTask(t, root)
	}
	t.Cleanup(func() {
		for _, cfg := range tasks {
			_ = destroy(cfg)
		}
	})
	var took durations
	began := time.Now()
	atOnce(t, tasks, func(cfg *drivers.TaskConfig) error {
		err := start(cfg)
		took.add(time.Since(began))
		return err
	})
	started := time.Since(began)
	atOnce(t, tasks, func(cfg *drivers.TaskConfig) error {
		status, err := p.InspectTask(cfg.ID)
		if err == nil && status.State != drivers.TaskStateRunning {
			err = fmt.Errorf("task %s is %s", cfg.ID, status.State)
		}
		return err
	})
	for _, cfg := range tasks {
		eventually(t, "the task's first words", func() bool {
			data, err := os.ReadFile(filepath.Join(cfg.TaskDir().LocalDir, "up"))
			return err == nil && strings.TrimSpace(string(data)) == cfg.AllocID
		})
	}
	running, err := d.listTasks(d.ctx)
	must.NoError(t, err)
	must.Len(t, crowd, running)
	high := p.memory(t, "VmHWM")

	ctx, cancel := context.WithTimeout(t.Context(), crowdTime)
	defer cancel()
	stopping := time.Now()
	atOnce(t, tasks, func(cfg *drivers.TaskConfig) error {
		results, err := p.WaitTask(ctx, cfg.ID)
		if err != nil {
			return err
		}
		if err := p.StopTask(cfg.ID, time.Minute, "SIGKILL"); err != nil {
			return err
		}
		if result := <-results; result.Err != nil || result.Signal != int(unix.SIGKILL) {
			return fmt.Errorf("task %s ended otherwise: %+v", cfg.ID, result)
		}
		return destroy(cfg)
	})
	for _, cfg := range tasks {
		must.SliceEmpty(t, taskCgroups(t, cfg))
	}
	d.noTraces(first)
	high = max(high, p.memory(t, "VmHWM"))
	t.Logf("%d tasks started in %s (half of them in %s) and stopped in %s; the plugin's memory: %d MiB before, at most "+
		"%d MiB, %d MiB after", crowd, started, took.median(), time.Since(stopping), before/size.MiB, high/size.MiB,
		p.memory(t, "VmRSS")/size.MiB)
	must.Less(t, crowdTime, started)
	must.Less(t, crowdMemoryBytes, high)
}

// durations are collected by many at once.
type durations struct {
	mu  sync.Mutex
	all []time.Duration
}

func (d *durations) add(one time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

func (d *durations) median() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.Sort(d.all)
	return d.all[len(d.all)/2]
}

// Nothing of the driver runs on for tasks that are gone.
func TestCrowd_LeavesNoGoroutines(t *testing.T) {
	d := newTestDriver(t)
	root := t.TempDir()
	tasks := make([]*drivers.TaskConfig, 8)
	for i := range tasks {
		tasks[i] = d.node.crowdTask(t, root)
	}
	// By then the driver's own are there.
	first := d.task("true")
	d.run(first, "")
	must.NoError(t, d.DestroyTask(first.ID, false))
	before := driverGoroutines(t)
	atOnce(t, tasks, func(cfg *drivers.TaskConfig) error {
		_, _, err := d.driver.StartTask(cfg)
		return err
	})
	must.Greater(t, len(before), len(driverGoroutines(t)))
	atOnce(t, tasks, func(cfg *drivers.TaskConfig) error { return d.driver.DestroyTask(cfg.ID, true) })
	var left []string
	ended := waitFor(func() bool {
		left = driverGoroutines(t)
		return len(left) <= len(before)
	})
	must.True(t, ended, must.Sprintf("these run on:\n%s", strings.Join(left, "\n\n")))
	d.noTraces(tasks[0])
}

// driverGoroutines are the stacks of goroutines that run code of the driver, the tests' own left out.
func driverGoroutines(t *testing.T) (found []string) {
	t.Helper()
	var stacks bytes.Buffer
	must.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 2))
	for stack := range strings.SplitSeq(stacks.String(), "\n\n") {
		if strings.Contains(stack, "tranche/driver.(*") && !strings.Contains(stack, "_test.go") {
			found = append(found, stack)
		}
	}
	return found
}
