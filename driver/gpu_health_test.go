package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/driver/client"
)

// healthNode is a driver, its ledger, and the file that the device plugin writes. Nothing of it needs containerd.
type healthNode struct {
	*Driver
	t      *testing.T
	runDir string
	ledger *claim.Ledger
	events <-chan *drivers.TaskEvent
}

func newHealthNode(t *testing.T) *healthNode {
	t.Helper()
	n := &healthNode{t: t, Driver: New(t.Context(), hclog.NewNullLogger()), runDir: filepath.Join(t.TempDir(), "run")}
	t.Cleanup(n.Shutdown)
	config := Config{StateDir: filepath.Join(t.TempDir(), "state"), RunDir: n.runDir}
	n.grants = &grants{config: config.runtimeConfig(), logger: n.logger}
	claimtest.RemoveRegions(t, n.runDir)
	var err error
	n.client, err = client.New(n.ctx, client.Config{Address: filepath.Join(n.runDir, "none.sock")})
	must.NoError(t, err)
	n.health = n.newGPUHealth()
	n.ledger, err = n.grants.open()
	must.NoError(t, err)
	n.events, err = n.TaskEvents(t.Context())
	must.NoError(t, err)
	return n
}

// start has a task run that has claims on GPUs.
func (n *healthNode) start(taskID string, gpus ...string) *taskHandle {
	n.t.Helper()
	cfg := &drivers.TaskConfig{ID: taskID, Name: taskID, AllocID: "alloc", DeviceEnv: map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}}
	for i, uuid := range gpus {
		_, token, err := n.ledger.Reserve(n.t.Context(), claim.Request{
			GPU: claim.GPU{UUID: uuid, Index: i, Name: "NVIDIA H200"}, Slices: []string{claim.SliceName(uuid, len(n.tasks.all()))},
			LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		})
		must.NoError(n.t, err)
		cfg.DeviceEnv[token.EnvName()] = token.Reveal()
	}
	h := newTaskHandle(n.Driver, cfg, taskState{})
	n.tasks.put(h)
	n.health.add(h)
	return h
}

func (n *healthNode) unfit(problems map[string]string) {
	n.t.Helper()
	conditions := map[string]health.Condition{}
	for uuid, problem := range problems {
		conditions[uuid] = health.Condition{Problem: problem, Since: time.Now()}
	}
	must.NoError(n.t, health.Write(n.runDir, health.Report{GPUs: conditions}))
}

// heard are the next so many events, by task.
func (n *healthNode) heard(count int) map[string][]string {
	n.t.Helper()
	heard := map[string][]string{}
	for range count {
		select {
		case event := <-n.events:
			heard[event.TaskID] = append(heard[event.TaskID], event.Message)
		case <-time.After(20 * time.Second):
			n.t.Fatalf("%d events were to come; there were %v", count, heard)
		}
	}
	select {
	case event := <-n.events:
		n.t.Fatalf("one event too many: %+v", event)
	case <-time.After(200 * time.Millisecond):
	}
	return heard
}

const (
	xid79     = "Xid 79: the GPU has fallen off the bus"
	gpuNamed  = "GPU NVIDIA H200 #0 (GPU-a)"
	elsewhere = ". The task keeps its claim there; `nomad alloc stop` has it placed elsewhere"
)

// Each task that runs with a claim on the GPU hears once of each condition, and when it is over.
func TestGPUHealth(t *testing.T) {
	n := newHealthNode(t)
	n.start("none")
	n.start("one", "GPU-a")
	n.start("two", "GPU-a", "GPU-b")
	n.start("other", "GPU-b")
	ended := n.start("ended", "GPU-a")
	ended.finish(&drivers.ExitResult{}, time.Now())

	n.unfit(map[string]string{"GPU-a": xid79})
	told := gpuNamed + " is unhealthy: " + xid79 + elsewhere
	must.Eq(t, map[string][]string{"one": {told}, "two": {told}}, n.heard(2))
	n.unfit(map[string]string{"GPU-a": xid79, "GPU-c": "another"})
	n.heard(0)
	n.unfit(map[string]string{"GPU-a": "the driver no longer lists the GPU"})
	must.Eq(t, map[string][]string{
		"one": {gpuNamed + " is unhealthy: the driver no longer lists the GPU" + elsewhere},
		"two": {gpuNamed + " is unhealthy: the driver no longer lists the GPU" + elsewhere},
	}, n.heard(2))

	n.start("late", "GPU-a")
	must.MapContainsKeys(t, n.heard(1), []string{"late"})
	must.NoError(t, os.WriteFile(filepath.Join(n.runDir, health.FileName), []byte("{"), 0o644))
	n.heard(0)
	n.unfit(nil)
	again := gpuNamed + " is healthy again; a program that failed on it has to be restarted"
	must.Eq(t, map[string][]string{"one": {again}, "two": {again}, "late": {again}}, n.heard(3))
	n.unfit(nil)
	n.heard(0)
}

// What was written before the driver began to watch is told, too: the plugin may have been restarted meanwhile.
func TestGPUHealth_Before(t *testing.T) {
	n := newHealthNode(t)
	n.unfit(map[string]string{"GPU-a": xid79})
	n.start("one", "GPU-a")
	must.MapContainsKeys(t, n.heard(1), []string{"one"})
}

// A task whose claim is bypassed hears so once, and when that is over; others hear nothing.
func TestGPUHealth_Bypassing(t *testing.T) {
	n := newHealthNode(t)
	n.start("none")
	h := n.start("one", "GPU-a")
	n.start("other", "GPU-a")
	n.heard(0)
	claims, err := n.grants.claimsOf(t.Context(), h)
	must.NoError(t, err)
	bypassing := map[string]health.Condition{claims[0].ID: {Problem: "process 4711 (1GiB)", Since: time.Now()}}
	must.NoError(t, health.Write(n.runDir, health.Report{Bypassing: bypassing}))
	said := "the task is bypassing the limit of its claim " + claims[0].ID + ": process 4711 (1GiB)"
	must.Eq(t, map[string][]string{"one": {said}}, n.heard(1))
	gone := map[string]health.Condition{"GPU-b": {Problem: xid79, Since: time.Now()}}
	must.NoError(t, health.Write(n.runDir, health.Report{GPUs: gone, Bypassing: bypassing}))
	n.heard(0)
	must.NoError(t, health.Write(n.runDir, health.Report{}))
	must.Eq(t, map[string][]string{"one": {"the task no longer bypasses the limit of its claim " + claims[0].ID}}, n.heard(1))
}
