package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/governor/status"
)

const gib = 1 << 30

// node is a node of two GPUs that only NVML knows of, with a real ledger.
type node struct {
	*Monitor
	nvml *nvmltest.Fake
	// later moves the monitor's clock.
	later time.Duration
}

func newNode(t *testing.T) *node {
	t.Helper()
	runDir := t.TempDir()
	claimtest.RemoveRegions(t, runDir)
	ledger, err := claim.Open(claim.Options{StateDir: t.TempDir(), RunDir: runDir})
	must.NoError(t, err)
	n := &node{nvml: nvmltest.New(nvmltest.H200(0), nvmltest.H200(1))}
	n.Monitor = New(Options{Ledger: ledger, NVML: n.nvml, RunDir: runDir, SliceBytes: gib})
	n.now = func() time.Time { return time.Now().Add(n.later) }
	return n
}

// look takes a new snapshot.
func (n *node) look() *Snapshot {
	n.later += 2 * fresh
	return n.Snapshot(context.Background())
}

func (n *node) reserve(t *testing.T, from, count int) *claim.Claim {
	t.Helper()
	g := nvmltest.H200(0)
	r := claim.Request{
		GPU: claim.GPU{UUID: g.UUID, Name: g.Name}, SliceBytes: gib, LimitBytes: uint64(count) * gib, Owner: claim.OwnerNomad,
	}
	for i := range count {
		r.Slices = append(r.Slices, fmt.Sprintf("%s/slice-%03d", g.UUID, from+i))
	}
	c, _, err := n.Ledger.Reserve(t.Context(), r)
	must.NoError(t, err)
	return c
}

// container binds a claim to a process, which end ends.
func (n *node) container(t *testing.T, c *claim.Claim) (pid int, end func()) {
	t.Helper()
	init := exec.Command("sleep", "1000")
	must.NoError(t, init.Start())
	end = func() { _ = init.Process.Kill(); _ = init.Wait() }
	t.Cleanup(end)
	must.NoError(t, n.Ledger.Bind(t.Context(), c.ID, claim.Container{Runtime: "runc", ID: "c-" + c.ID, InitPID: init.Process.Pid}))
	return init.Process.Pid, end
}

// process starts a process of no container.
func process(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

func (n *node) holds(pids map[int]uint64) {
	var all []nvml.Process
	for pid, bytes := range pids {
		all = append(all, nvml.Process{PID: pid, UsedBytes: bytes, UsedKnown: true})
	}
	n.nvml.SetProcesses(nvmltest.H200(0).UUID, all...)
}

func TestSnapshot_CountsSlicesByState(t *testing.T) {
	n := newNode(t)
	runs, ends := n.reserve(t, 0, 8), n.reserve(t, 8, 4)
	n.reserve(t, 12, 2)
	init, _ := n.container(t, runs)
	_, end := n.container(t, ends)
	end()
	n.holds(map[int]uint64{init: 3 * gib, process(t): 5*gib + 1})

	s := n.look()
	must.MapEmpty(t, s.Errors)
	total := 140
	must.Eq(t, &Slices{SliceBytes: gib, Total: &total, Running: 8, Reserved: 2, Dormant: 4, Outside: 5, Free: 121}, s.GPUs[0].Slices)
	must.Eq(t, &Slices{SliceBytes: gib, Total: &total, Free: 140}, s.GPUs[1].Slices)
	must.Eq(t, 125, s.GPUs[0].Available(), must.Sprint("dormant claims yield"))
	must.Eq(t, 5*gib+1, *s.GPUs[0].OutsideBytes)
	must.Eq(t, 10*gib, s.ReservedBytes(s.GPUs[0].UUID))
	must.Len(t, 3, s.Claims)

	n.holds(map[int]uint64{init: 3 * gib, process(t): 128 * gib})
	s = n.look()
	must.Eq(t, &Slices{SliceBytes: gib, Total: &total, Running: 8, Reserved: 2, Dormant: 2, Outside: 128}, s.GPUs[0].Slices)
	must.Eq(t, 2, s.GPUs[0].Available(), must.Sprint("dormant slices without memory are not there for others"))
	n.holds(map[int]uint64{init: 3 * gib, process(t): 5*gib + 1})

	must.NoError(t, health.Write(n.RunDir, health.Report{
		GPUs:      map[string]health.Condition{nvmltest.H200(0).UUID: {Problem: "Xid 79"}},
		Uncounted: map[string]health.Condition{runs.ID: {Problem: "past the library", Bytes: gib}, ends.ID: {Bytes: gib}},
	}))
	s = n.look()
	must.Eq(t, 121, s.GPUs[0].Slices.Unhealthy)
	must.Zero(t, s.GPUs[0].Slices.Free)
	must.Zero(t, s.GPUs[0].Available(), must.Sprint("of an unhealthy GPU nothing is given away"))
	must.Eq(t, gib, s.Claims[0].Uncounted.Bytes)
	must.Nil(t, s.Claims[1].Uncounted) // its container has ended
}

// TestSnapshot_SharedInstance has a process of a claim on a MIG instance, which NVML lists for the GPU, too.
func TestSnapshot_SharedInstance(t *testing.T) {
	n := newNode(t)
	g := nvmltest.H200(0)
	g.MIG = nvml.MIG{Enabled: true, Instances: []nvml.MIGInstance{{UUID: "MIG-a", MemoryBytes: 16 * gib}}}
	n.nvml.SetGPUs(g)
	c, _, err := n.Ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: "MIG-a"}, SliceBytes: gib, LimitBytes: 4 * gib, Owner: claim.OwnerNomad,
		Slices: []string{"MIG-a/slice-000", "MIG-a/slice-001", "MIG-a/slice-002", "MIG-a/slice-003"},
	})
	must.NoError(t, err)
	init, _ := n.container(t, c)
	for _, uuid := range []string{g.UUID, "MIG-a"} {
		n.nvml.SetProcesses(uuid, nvml.Process{PID: init, UsedBytes: 2 * gib, UsedKnown: true})
	}
	s := n.look()
	must.MapEmpty(t, s.Errors)
	must.Len(t, 2, s.GPUs)
	must.Zero(t, *s.GPUs[0].OutsideBytes)
	must.Eq(t, 16, *s.GPUs[1].Slices.Total)
	must.Eq(t, g.UUID, s.GPUs[1].Parent)
}

func TestSnapshot_LostGPUIsThereOnce(t *testing.T) {
	n := newNode(t)
	n.reserve(t, 0, 8) // on GPU 0
	n.nvml.SetGPUs(nvmltest.H200(1))
	n.nvml.SetFailed(nvml.Failure{Index: 0, Err: errors.New("GPU is lost")})
	s := n.look()
	must.Len(t, 2, s.GPUs)
	must.Eq(t, nvmltest.H200(0).UUID, s.GPUs[0].UUID)
	must.Eq(t, "GPU is lost", s.GPUs[0].Error)
	must.Eq(t, 8, s.GPUs[0].Slices.Reserved)
}

func TestSnapshot_UnknownStaysUnknown(t *testing.T) {
	n := newNode(t)
	c := n.reserve(t, 0, 8)
	n.nvml.SetProcesses(nvmltest.H200(0).UUID, nvml.Process{PID: process(t)}) // of which the driver does not say the memory
	must.Nil(t, n.look().GPUs[0].OutsideBytes)
	must.Nil(t, n.look().Claims[0].Utilization)
	must.Nil(t, (&Snapshot{GPUs: []GPU{{Index: 2, Error: "it never answered"}}}).GPU(""))

	n.nvml.SetError(errors.New("the driver is gone"))
	s := n.look()
	must.Eq(t, "the driver is gone", s.Errors[SourceNVML])
	must.Len(t, 1, s.GPUs) // the one that a claim names
	must.Eq(t, "the driver is gone", s.GPUs[0].Error)
	must.Nil(t, s.GPUs[0].MemoryBytes)
	must.Nil(t, s.GPUs[0].Slices.Total)
	must.Eq(t, c.ID, s.Claims[0].ID)

	n.nvml.SetError(nil)
	must.NoError(t, os.WriteFile(filepath.Join(n.RunDir, health.FileName), []byte("{"), 0o600))
	must.MapContainsKey(t, n.look().Errors, SourceHealth)
}

func TestSnapshot_DriverThatHangs(t *testing.T) {
	n := newNode(t)
	n.reserve(t, 0, 8)
	unstick := n.nvml.Stick()
	defer unstick()
	s := n.look() // returns
	must.StrContains(t, s.Errors[SourceNVML], "deadline")
	must.Len(t, 1, s.Claims)
}

func TestSnapshot_Utilization(t *testing.T) {
	n := newNode(t)
	first, second := n.reserve(t, 0, 8), n.reserve(t, 8, 4)
	one, _ := n.container(t, first)
	n.container(t, second)
	n.holds(map[int]uint64{one: gib})
	n.nvml.SetProcessUtilization(nvmltest.H200(0).UUID, map[int]nvml.Busy{one: {Multiprocessors: 0.4, Greatest: 0.4}})
	s := n.look()
	must.Eq(t, 0.4, *s.Claims[0].Utilization)
	must.Zero(t, *s.Claims[1].Utilization)
	must.Nil(t, s.Claims[1].Usage.Spill)
}

// TestSnapshot_ActiveWithoutComputing has the processes of two containers busy in ways that are easily taken for idle.
func TestSnapshot_ActiveWithoutComputing(t *testing.T) {
	n := newNode(t)
	first, second, renders, idles := n.reserve(t, 0, 8), n.reserve(t, 8, 4), n.reserve(t, 12, 4), n.reserve(t, 16, 4)
	one, _ := n.container(t, first)
	must.NoError(t, n.Ledger.Bind(t.Context(), second.ID, claim.Container{Runtime: "runc", ID: "c-" + first.ID, InitPID: one}))
	other, _ := n.container(t, renders)
	n.container(t, idles)
	n.holds(map[int]uint64{one: gib}) // NVML does not list the other one, which does not compute
	n.nvml.SetProcessUtilization(nvmltest.H200(0).UUID, map[int]nvml.Busy{
		one: {Multiprocessors: 0.4, Greatest: 0.4}, other: {Greatest: 0.2},
	})
	s := n.look()
	must.Zero(t, *s.Claims[1].Utilization, must.Sprint("the container's processes count for its first claim"))
	must.Zero(t, *s.Claims[2].Utilization)
	for _, c := range s.Claims {
		want := ActivityActive
		if c.ID == idles.ID {
			want = ActivityUnknown // not observed for long enough to be idle
		}
		must.Eq(t, want, c.Idleness.Activity, must.Sprint(c.ID))
	}
}

// TestSnapshot_ReaderThatLeaves takes a snapshot for a reader whose context ends: the next reader shares it.
func TestSnapshot_ReaderThatLeaves(t *testing.T) {
	n := newNode(t)
	gone, leave := context.WithCancel(t.Context())
	leave()
	s := n.Snapshot(gone)
	must.MapEmpty(t, s.Errors)
	must.Eq(t, "", s.GPUs[0].Error)
}

func TestSnapshot_Workloads(t *testing.T) {
	n := newNode(t)
	c := n.reserve(t, 0, 8)
	must.NoError(t, n.Ledger.NoteWorkload(t.Context(), c.ID, claim.Workload{Namespace: "default", Job: "train", Verified: true}))
	must.Eq(t, "train", n.look().Claims[0].Workload.Job)
}

// TestSnapshot_Turns reads what the governor says only while one runs.
func TestSnapshot_Turns(t *testing.T) {
	n := newNode(t)
	g := nvmltest.H200(0)
	c, _, err := n.Ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: g.UUID}, SliceBytes: gib, LimitBytes: gib, Owner: claim.OwnerNomad, Slices: []string{g.UUID + "/slice-000"},
		Compute: claim.ShareOf(30, 100),
	})
	must.NoError(t, err)
	must.MapEmpty(t, n.look().Errors) // nothing runs that a governor should know
	n.container(t, c)
	s := n.look()
	must.StrContains(t, s.Errors[SourceGovernor], "no governor has run since this node was booted")
	must.Nil(t, s.Claims[0].Turns)

	publish := func(written time.Time) {
		must.NoError(t, status.Write(n.RunDir, status.Status{
			Written: written,
			Claims:  map[string]status.Claim{c.ID: {GPUUUID: g.UUID, GPUSeconds: 12.5, Overruns: 2}, "0badcafe": {}},
		}))
	}
	publish(n.now())
	s = n.look()
	must.MapEmpty(t, s.Errors)
	must.Eq(t, 12.5, s.Claims[0].Turns.GPUSeconds)

	publish(n.now().Add(-time.Minute))
	s = n.look()
	must.StrContains(t, s.Errors[SourceGovernor], "no governor has run since 20")
	must.Nil(t, s.Claims[0].Turns)
}

// TestSnapshot_StateIsTheLedgers takes a claim for dormant whose container did not start in time, as all programs do.
func TestSnapshot_StateIsTheLedgers(t *testing.T) {
	n := newNode(t)
	n.reserve(t, 0, 8)
	must.Eq(t, claim.StateReserved, n.look().Claims[0].State)
	n.later = claim.StartTimeout
	must.Eq(t, claim.StateDormant, n.look().Claims[0].State)
	must.Eq(t, 8, n.look().GPUs[0].Slices.Dormant)
}

func TestSnapshot_IsSharedForASecond(t *testing.T) {
	n := newNode(t)
	now := time.Now()
	n.now = func() time.Time { return now }
	first := n.Snapshot(t.Context())
	now = now.Add(fresh - 1)
	must.True(t, first == n.Snapshot(t.Context()))
	now = now.Add(1)
	must.False(t, first == n.Snapshot(t.Context()))
	must.Eq(t, 2, n.nvml.Reads())
}

func TestRun_CountsXids(t *testing.T) {
	n := newNode(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	uuid := nvmltest.H200(1).UUID
	for _, xid := range []uint64{13, 79, 13} {
		must.NoError(t, n.nvml.Post(ctx, nvml.Event{UUID: uuid, Xid: xid}))
	}
	// An event is received when the next one is posted.
	must.NoError(t, n.nvml.Post(ctx, nvml.Event{UUID: nvmltest.H200(0).UUID, Xid: 1}))
	for range 2 { // it may be any GPU
		must.NoError(t, n.nvml.Post(ctx, nvml.Event{Xid: 79}))
	}
	must.NoError(t, n.nvml.Post(ctx, nvml.Event{UUID: nvmltest.H200(0).UUID, Xid: 1}))
	stop()
	<-done
	s := n.look()
	must.Eq(t, map[uint64]uint64{13: 2, 79: 3}, s.GPU(uuid).Xids)
	must.Eq(t, 2, s.GPU(nvmltest.H200(0).UUID).Xids[79])
}
