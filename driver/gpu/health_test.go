package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/idle"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

// healthNode is a ledger, the file that the device plugin writes, and the tasks that run.
type healthNode struct {
	*Health
	t      *testing.T
	runDir string
	ledger *claim.Ledger
	events chan taskEvent

	mu    sync.Mutex
	tasks []*drivers.TaskConfig
}

type taskEvent struct{ taskID, message string }

func newHealthNode(t *testing.T) *healthNode {
	t.Helper()
	n := &healthNode{t: t, runDir: filepath.Join(t.TempDir(), "run"), events: make(chan taskEvent, 100)}
	claims := New(runtime.Config{Node: edit.Node{StateDir: filepath.Join(t.TempDir(), "state"), RunDir: n.runDir}},
		hclog.NewNullLogger())
	claimtest.RemoveRegions(t, n.runDir)
	containerd, err := client.New(t.Context(), client.Config{Address: filepath.Join(n.runDir, "none.sock")})
	must.NoError(t, err)
	t.Cleanup(func() { _ = containerd.Close() })
	n.Health = NewHealth(HealthConfig{Client: containerd, Logger: hclog.NewNullLogger(), Claims: claims, Running: n.running,
		Notify: func(cfg *drivers.TaskConfig, _ map[string]string, format string, args ...any) {
			n.events <- taskEvent{cfg.ID, fmt.Sprintf(format, args...)}
		},
		Kill: func(taskID string) error {
			n.events <- taskEvent{taskID, "killed"}
			return nil
		}})
	n.ledger, err = claims.open()
	must.NoError(t, err)
	return n
}

func (n *healthNode) running() []*drivers.TaskConfig {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.tasks)
}

// run has a task run that has claims on GPUs.
func (n *healthNode) run(taskID string, gpus ...string) *drivers.TaskConfig {
	n.t.Helper()
	cfg := &drivers.TaskConfig{ID: taskID, Name: taskID, AllocID: "alloc", DeviceEnv: map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}}
	for i, uuid := range gpus {
		_, token, err := n.ledger.Reserve(n.t.Context(), claim.Request{
			GPU: claim.GPU{UUID: uuid, Index: i, Name: "NVIDIA H200"}, Slices: []string{claim.SliceName(uuid, len(n.running()))},
			LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		})
		must.NoError(n.t, err)
		cfg.DeviceEnv[token.EnvName()] = token.Reveal()
	}
	n.mu.Lock()
	n.tasks = append(n.tasks, cfg)
	n.mu.Unlock()
	n.Add(cfg)
	return cfg
}

// runBesideAnother has the task "one" run, and another on its GPU, and returns the claim of the first.
func (n *healthNode) runBesideAnother() (claimID string) {
	task := n.run("one", "GPU-a")
	n.run("other", "GPU-a")
	n.emitted(0)
	claims, err := n.Claims.of(n.t.Context(), task)
	must.NoError(n.t, err)
	return claims[0].ID
}

// end ends a task.
func (n *healthNode) end(cfg *drivers.TaskConfig) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tasks = slices.DeleteFunc(n.tasks, func(other *drivers.TaskConfig) bool { return other == cfg })
}

func (n *healthNode) unhealthy(problems map[string]string) {
	n.t.Helper()
	conditions := map[string]health.Condition{}
	for uuid, problem := range problems {
		conditions[uuid] = health.Condition{Problem: problem, Since: time.Now()}
	}
	must.NoError(n.t, health.Write(n.runDir, health.Report{GPUs: conditions}))
}

// emitted returns the next events, so many and no more, by task.
func (n *healthNode) emitted(count int) map[string][]string {
	n.t.Helper()
	events := map[string][]string{}
	for range count {
		select {
		case event := <-n.events:
			events[event.taskID] = append(events[event.taskID], event.message)
		case <-time.After(time.Minute):
			n.t.Fatalf("%d events were to come; there were %v", count, events)
		}
	}
	select {
	case event := <-n.events:
		n.t.Fatalf("one event too many: %+v", event)
	case <-time.After(200 * time.Millisecond):
	}
	return events
}

const (
	xid79     = "Xid 79: the GPU has fallen off the bus"
	gpuNamed  = "GPU NVIDIA H200 #0 (GPU-a)"
	elsewhere = ". The task keeps its claim there; `nomad alloc stop` has it placed elsewhere"
)

// Each task that runs with a claim on the GPU gets one event of each condition, and one when it is over.
func TestHealth(t *testing.T) {
	n := newHealthNode(t)
	n.run("none")
	n.run("one", "GPU-a")
	n.run("two", "GPU-a", "GPU-b")
	n.run("other", "GPU-b")
	ended := n.run("ended", "GPU-a")
	n.end(ended)

	n.unhealthy(map[string]string{"GPU-a": xid79})
	unhealthy := gpuNamed + " is unhealthy: " + xid79 + elsewhere
	must.Eq(t, map[string][]string{"one": {unhealthy}, "two": {unhealthy}}, n.emitted(2))
	n.unhealthy(map[string]string{"GPU-a": xid79, "GPU-c": "another"})
	n.emitted(0)
	n.unhealthy(map[string]string{"GPU-a": "the driver no longer lists the GPU"})
	must.Eq(t, map[string][]string{
		"one": {gpuNamed + " is unhealthy: the driver no longer lists the GPU" + elsewhere},
		"two": {gpuNamed + " is unhealthy: the driver no longer lists the GPU" + elsewhere},
	}, n.emitted(2))

	n.run("late", "GPU-a")
	must.MapContainsKeys(t, n.emitted(1), []string{"late"})
	must.NoError(t, os.WriteFile(filepath.Join(n.runDir, health.FileName), []byte("{"), 0o644))
	n.emitted(0)
	n.unhealthy(nil)
	again := gpuNamed + " is healthy again; a program that failed on it has to be restarted"
	must.Eq(t, map[string][]string{"one": {again}, "two": {again}, "late": {again}}, n.emitted(3))
	n.unhealthy(nil)
	n.emitted(0)
}

// What was written before the driver began to watch is published, too: the plugin may have been restarted meanwhile.
func TestHealth_Before(t *testing.T) {
	n := newHealthNode(t)
	n.unhealthy(map[string]string{"GPU-a": xid79})
	n.run("one", "GPU-a")
	must.MapContainsKeys(t, n.emitted(1), []string{"one"})
}

// A task with uncounted memory gets an event, and one when that is over; others get none.
func TestHealth_Uncounted(t *testing.T) {
	n := newHealthNode(t)
	n.run("none")
	id := n.runBesideAnother()
	uncounted := map[string]health.Condition{id: {Problem: "process 4711 (1GiB)", Since: time.Now()}}
	must.NoError(t, health.Write(n.runDir, health.Report{Uncounted: uncounted}))
	said := "the task uses GPU memory that its claim " + id + " does not count: process 4711 (1GiB)"
	must.Eq(t, map[string][]string{"one": {said}}, n.emitted(1))
	gone := map[string]health.Condition{"GPU-b": {Problem: xid79, Since: time.Now()}}
	must.NoError(t, health.Write(n.runDir, health.Report{GPUs: gone, Uncounted: uncounted}))
	n.emitted(0)
	must.NoError(t, health.Write(n.runDir, health.Report{}))
	must.Eq(t, map[string][]string{"one": {"the claim " + id + " counts all GPU memory of the task again"}}, n.emitted(1))
}

// A task whose processes use the GPU outside of its turns gets an event that names them, and one when that is over.
func TestHealth_NotJoined(t *testing.T) {
	n := newHealthNode(t)
	id := n.runBesideAnother()
	write := func(outside ...status.Process) {
		must.NoError(t, status.Write(n.runDir, status.Status{
			Written: time.Now(), Claims: map[string]status.Claim{id: {NotJoined: outside}},
		}))
	}
	write()
	write(status.Process{PID: 4711, Name: "a.out"})
	events := n.emitted(1)["one"]
	must.StrContains(t, events[0], "the share of claim "+id+" of the GPU's time does not hold for process 4711 (a.out)")
	write(status.Process{PID: 4711, Name: "a.out"})
	n.emitted(0)
	must.NoError(t, status.Write(n.runDir, status.Status{Written: time.Now().Add(-time.Hour)}))
	n.emitted(0) // without a governor, nobody knows that they have joined
	write()
	events = n.emitted(1)["one"]
	must.StrContains(t, events[0], "holds for all processes of the task again")
}

// Whoever can open the governor's lock can hold it.
func TestGovernorDir_IsPrivate(t *testing.T) {
	dir, err := governorDir(t.TempDir())
	must.NoError(t, err)
	info, err := os.Stat(dir)
	must.NoError(t, err)
	must.Eq(t, 0o700, info.Mode().Perm())
}

// What follows is in the event; where the operator wants it, the task is ended, once.
func TestHealth_BypassEnds(t *testing.T) {
	n := newHealthNode(t)
	id := n.runBesideAnother()
	container := "an earlier one"
	write := func(follows layout.Bypass) {
		must.NoError(t, status.Write(n.runDir, status.Status{Written: time.Now(), Claims: map[string]status.Claim{
			id: {NotJoined: []status.Process{{PID: 4711, Name: "a.out"}}, NotJoinedIn: container, Bypass: follows},
		}}))
	}
	write(layout.BypassEnds)
	n.emitted(0) // the task was restarted in place since then
	container = ""
	write(layout.BypassCharged)
	must.StrContains(t, n.emitted(1)["one"][0], "; the claim is charged for the time that it takes")
	write("")
	must.StrHasSuffix(t, "load libcuda.so.1 by that name", n.emitted(1)["one"][0])
	write(layout.BypassEnds)
	events := n.emitted(3)["one"]
	must.StrContains(t, events[0], "does not hold for process 4711 (a.out)")
	must.Eq(t, "killed", events[1])
	must.Eq(t, `the task was ended for that, as the device plugin's configuration says (compute_bypass = "end")`, events[2])
	must.NoError(t, health.Write(n.runDir, health.Report{GPUs: map[string]health.Condition{"GPU-b": {Problem: xid79, Since: time.Now()}}}))
	n.emitted(0)
}

// A task whose claim has been idle for too long gets an event of each consequence, and one when that is over.
func TestHealth_Idle(t *testing.T) {
	n := newHealthNode(t)
	id := n.runBesideAnother()
	condition := idle.Condition{State: idle.Observed, Since: time.Unix(1_800_000_000, 0)}
	write := func() {
		must.NoError(t, idle.Write(n.runDir, idle.Report{Claims: map[string]idle.Condition{id: condition}}))
	}
	write()
	n.emitted(0)
	condition.State = idle.Warned
	write()
	must.Eq(t, map[string][]string{"one": {"claim " + id + " is idle since 2027-01-15 08:00:00 UTC"}}, n.emitted(1))
	condition.State, condition.Note = idle.Held, "others are busy"
	write()
	must.StrHasSuffix(t, "and not stopped: others are busy", n.emitted(1)["one"][0])
	write()
	must.NoError(t, os.WriteFile(filepath.Join(n.runDir, idle.FileName), []byte("{"), 0o644))
	n.emitted(0)
	condition.Container = "an earlier container"
	write()
	must.StrContains(t, n.emitted(1)["one"][0], "is no longer taken for idle")
	must.NoError(t, idle.Write(n.runDir, idle.Report{}))
	n.emitted(0)
}

// Where the operator wants it, the task is ended, once.
func TestHealth_UncountedEnds(t *testing.T) {
	n := newHealthNode(t)
	id := n.runBesideAnother()
	condition := health.Condition{Problem: "process 4711 (1GiB)", Since: time.Now(), Bytes: 1 << 30, End: true, Container: "an earlier one"}
	must.NoError(t, health.Write(n.runDir, health.Report{Uncounted: map[string]health.Condition{id: condition}}))
	n.emitted(0) // the task was restarted in place since then
	condition.Container = ""
	must.NoError(t, health.Write(n.runDir, health.Report{Uncounted: map[string]health.Condition{id: condition}}))
	events := n.emitted(3)["one"]
	must.Eq(t, "killed", events[1])
	must.StrContains(t, events[2], "the task was ended for that")
	condition.Bytes = 2 << 30
	must.NoError(t, health.Write(n.runDir, health.Report{Uncounted: map[string]health.Condition{id: condition}}))
	n.emitted(0)
}
