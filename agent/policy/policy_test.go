package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/monitor"
	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/idle"
)

const thisNode, otherNode = "node-1", "node-2"

// fakeNomad is Nomad's API as far as it is used.
type fakeNomad struct {
	*httptest.Server
	mu     sync.Mutex
	allocs []*fakeAlloc
	// fail is the status of all that changes a job; 0 for success.
	fail int
	// down has everything fail.
	down bool
	// stopped are the changes of jobs.
	stopped []string
}

type fakeAlloc struct {
	id, job, group, node, status string
	devices                      []string
	meta, groupMeta              map[string]string
	parent                       string
}

func newNomad(t *testing.T) *fakeNomad {
	n := &fakeNomad{}
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(r *http.Request) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.down || r.Header.Get("X-Nomad-Token") != "s3cret" {
				http.Error(w, "Permission denied", http.StatusForbidden)
				return
			}
			if value := answer(r); value != nil {
				_ = json.NewEncoder(w).Encode(value)
				return
			}
			http.Error(w, "refused", n.fail)
		})
	}
	handle("GET /v1/allocation/{id}", func(r *http.Request) any {
		for _, a := range n.allocs {
			if a.id == r.PathValue("id") {
				return map[string]any{
					"ID": a.id, "NodeID": a.node, "TaskGroup": a.group, "Job": map[string]any{
						"ID": a.job, "ParentID": a.parent, "Meta": a.meta,
						"TaskGroups": []any{map[string]any{"Name": a.group, "Meta": a.groupMeta}},
					},
					"AllocatedResources": map[string]any{"Tasks": map[string]any{"t": map[string]any{
						"Devices": []any{map[string]any{"DeviceIDs": a.devices}},
					}}},
				}
			}
		}
		return nil
	})
	handle("GET /v1/job/{job}", func(r *http.Request) any {
		return map[string]any{"ID": r.PathValue("job"), "JobModifyIndex": 7}
	})
	handle("GET /v1/job/{job}/allocations", func(r *http.Request) any {
		stubs := []any{}
		for _, a := range n.allocs {
			if a.job == r.PathValue("job") {
				stubs = append(stubs, map[string]string{"ID": a.id, "TaskGroup": a.group, "NodeID": a.node, "ClientStatus": a.status})
			}
		}
		return stubs
	})
	change := func(what string) any {
		if n.fail != 0 {
			return nil
		}
		n.stopped = append(n.stopped, what)
		return map[string]any{}
	}
	handle("PUT /v1/job/{job}/scale", func(r *http.Request) any {
		var request struct {
			Count          *int
			Target         map[string]string
			Message        string
			JobModifyIndex int
		}
		must.NoError(t, json.NewDecoder(r.Body).Decode(&request))
		must.Eq(t, 0, *request.Count)
		must.Eq(t, 7, request.JobModifyIndex)
		must.StrContains(t, request.Message, "has not used its GPU since")
		return change("scale " + r.URL.Query().Get("namespace") + "/" + r.PathValue("job") + "/" + request.Target["Group"])
	})
	handle("DELETE /v1/job/{job}", func(r *http.Request) any {
		must.Eq(t, "false", r.URL.Query().Get("purge"))
		return change("stop " + r.URL.Query().Get("namespace") + "/" + r.PathValue("job"))
	})
	n.Server = httptest.NewServer(mux)
	t.Cleanup(n.Close)
	return n
}

// node is a node with claims, and a policy.
type node struct {
	*Policy
	t      *testing.T
	nomad  *fakeNomad
	now    time.Time
	claims []*monitor.Claim
	// idle is since when the claims of allocations are idle; those of others are unknown, and those in use active.
	idle  map[string]time.Time
	inUse []*monitor.Claim
	log   strings.Builder
}

func newNode(t *testing.T, config string) *node {
	t.Helper()
	n := &node{t: t, nomad: newNomad(t), now: time.Unix(1_800_000_000, 0), idle: make(map[string]time.Time)}
	token := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	c, err := load(t, fmt.Sprintf("nomad_address = %q\nnomad_token_file = %q\n%s", n.nomad.URL, token, config))
	must.NoError(t, err)
	n.Policy = New(Options{
		Config: c, RunDir: filepath.Join(t.TempDir(), "run"), Node: "gpu-7",
		Logger: hclog.New(&hclog.LoggerOptions{Output: &n.log, Level: hclog.Debug}),
	})
	return n
}

// alloc adds an allocation with a claim, on this node unless it says another, which is idle from now on.
func (n *node) alloc(a fakeAlloc) *fakeAlloc {
	slice := claim.SliceName("GPU-1", len(n.claims))
	if a.group == "" {
		a.group = "g"
	}
	if a.node == "" {
		a.node = thisNode
	}
	a.status, a.devices = "running", append(a.devices, slice)
	n.nomad.allocs = append(n.nomad.allocs, &a)
	if a.node == thisNode {
		n.claims = append(n.claims, &monitor.Claim{
			Claim: &claim.Claim{ID: "claim-" + a.id, Slices: []string{slice}, Container: &claim.Container{ID: a.id}},
			Workload: claim.Workload{
				Namespace: "default", Job: a.job, ParentJob: a.parent, Group: a.group, Task: "t", Allocation: a.id, Verified: true,
			},
			State: claim.StateRunning,
		})
		n.idle[a.id] = n.now
	}
	return &a
}

// after takes a look at the claims some time later, and returns what is published then.
func (n *node) after(d time.Duration) map[string]idle.Condition {
	n.t.Helper()
	n.now = n.now.Add(d)
	for _, c := range n.claims {
		c.Idleness = monitor.Idleness{Activity: monitor.ActivityUnknown}
		if slices.Contains(n.inUse, c) {
			c.Idleness = monitor.Idleness{Activity: monitor.ActivityActive, Idle: new(time.Duration)}
		} else if since, ok := n.idle[c.Workload.Allocation]; ok {
			quiet := n.now.Sub(since)
			c.Idleness = monitor.Idleness{Activity: monitor.ActivityIdleWithMemory, Idle: &quiet}
		}
	}
	n.step(n.t.Context(), &monitor.Snapshot{Time: n.now, Claims: n.claims})
	published, err := idle.Read(n.RunDir)
	must.NoError(n.t, err)
	return published.Claims
}

func (n *node) states(claims map[string]idle.Condition) map[string]idle.State {
	states := make(map[string]idle.State)
	for id, c := range claims {
		states[strings.TrimPrefix(id, "claim-")] = c.State
	}
	return states
}

// states are those of the claims of allocations, by the allocation's ID.
type states = map[string]idle.State

func TestPolicy_Off(t *testing.T) {
	n := newNode(t, "[idle]\nafter = '1h'\n[idle.namespaces.other]\npolicy = 'stop'")
	n.alloc(fakeAlloc{id: "a", job: "j"})
	must.MapEmpty(t, n.after(100*time.Hour))
	must.Eq(t, "", n.log.String())
	must.MapEmpty(t, n.Actions())
}

func TestPolicy_Observe(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'observe'\nafter = '1h'")
	n.alloc(fakeAlloc{id: "a", job: "j"})
	must.MapEmpty(t, n.after(time.Hour-1))
	must.Eq(t, states{"a": idle.Observed}, n.states(n.after(1)))
	n.after(100 * time.Hour)
	must.Eq(t, map[monitor.PolicyAction]uint64{{Namespace: "default", Action: "observed"}: 1}, n.Actions())
	must.SliceEmpty(t, n.nomad.stopped)
	must.StrNotContains(t, n.log.String(), "[WARN]")
}

func TestPolicy_Warn(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'warn'\nafter = '1h'\nmax_after = '4h'")
	n.alloc(fakeAlloc{id: "plain", job: "j"})
	n.alloc(fakeAlloc{id: "extended", job: "j", meta: map[string]string{MetaKey: "2h"}})
	n.alloc(fakeAlloc{id: "by-group", job: "j", meta: map[string]string{MetaKey: "2h"}, groupMeta: map[string]string{MetaKey: "3h"}})
	n.alloc(fakeAlloc{id: "ceiling", job: "j", meta: map[string]string{MetaKey: "1000h"}})
	n.alloc(fakeAlloc{id: "no-less", job: "j", meta: map[string]string{MetaKey: "1s"}})
	n.alloc(fakeAlloc{id: "misspelled", job: "j", meta: map[string]string{MetaKey: "for ever"}})
	unknown := n.alloc(fakeAlloc{id: "unknown", job: "j"})
	delete(n.idle, unknown.id)
	must.MapEmpty(t, n.after(time.Hour-time.Second))
	want := states{"plain": idle.Warned, "no-less": idle.Warned, "misspelled": idle.Warned}
	first := n.after(time.Second)
	must.Eq(t, want, n.states(first))
	must.Eq(t, "idle since 2027-01-15 08:00:00 UTC", first["claim-plain"].String())
	must.StrContains(t, n.log.String(), `tranche_idle_after must be a duration such as \"6h\", got \"for ever\"`)
	want["extended"] = idle.Warned
	must.Eq(t, want, n.states(n.after(time.Hour)))
	want["by-group"] = idle.Warned
	must.Eq(t, want, n.states(n.after(time.Hour)))
	want["ceiling"] = idle.Warned
	must.Eq(t, want, n.states(n.after(time.Hour)))
	must.Eq(t, 6, n.Actions()[monitor.PolicyAction{Namespace: "default", Action: "warned"}])

	n.idle["plain"] = n.now // it used its GPU
	delete(want, "plain")
	must.Eq(t, want, n.states(n.after(time.Second)))
	want["plain"] = idle.Warned
	must.Eq(t, want, n.states(n.after(time.Hour)))
	must.Eq(t, 7, n.Actions()[monitor.PolicyAction{Namespace: "default", Action: "warned"}])
	must.SliceEmpty(t, n.nomad.stopped)
}

// TestPolicy_PartsOfAnAllocation has allocations with an idle claim, and with something beside it that may be in use.
func TestPolicy_PartsOfAnAllocation(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '0s'")
	var second []*monitor.Claim
	for id, change := range map[string]func(c *monitor.Claim){
		"starting":            func(c *monitor.Claim) { c.State = claim.StateReserved },
		"stated-by-container": func(c *monitor.Claim) { c.Workload.Verified = false },
		"without-names":       func(c *monitor.Claim) { c.Workload = claim.Workload{} },
	} {
		a := n.alloc(fakeAlloc{id: id, job: id, devices: []string{"second-" + id}})
		c := *n.claims[len(n.claims)-1]
		c.Claim = &claim.Claim{ID: a.devices[0], Slices: a.devices[:1], Container: &claim.Container{}}
		change(&c)
		second = append(second, &c)
	}
	n.alloc(fakeAlloc{id: "of-another-plugin", job: "of-another-plugin", devices: []string{"GPU-7"}})
	n.claims = append(n.claims, second...)
	n.inUse = second
	n.after(time.Hour)
	must.MapEmpty(t, n.after(time.Hour))
	must.SliceEmpty(t, n.nomad.stopped)
	for _, c := range second { // its task has ended
		c.State = claim.StateDormant
	}
	must.MapLen(t, 3, n.after(time.Hour))
	must.Len(t, 3, n.nomad.stopped)
}

func TestPolicy_Stop(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '10m'\nstops_per_hour = 2")
	n.alloc(fakeAlloc{id: "one", job: "alone"})
	n.alloc(fakeAlloc{id: "two", job: "pair"})
	n.alloc(fakeAlloc{id: "three", job: "pair"})
	busy := n.alloc(fakeAlloc{id: "busy", job: "pair", group: "other"})
	delete(n.idle, busy.id)
	warned := n.after(time.Hour)
	must.Eq(t, states{"one": idle.Warned, "two": idle.Warned, "three": idle.Warned}, n.states(warned))
	must.Eq(t, "idle since 2027-01-15 08:00:00 UTC: its group is stopped at 2027-01-15 09:10:00 UTC unless it uses the GPU", warned["claim-one"].String())
	n.after(10*time.Minute - time.Second)
	must.SliceEmpty(t, n.nomad.stopped)
	must.Eq(t, states{"one": idle.Stopped, "two": idle.Stopped, "three": idle.Stopped}, n.states(n.after(time.Second)))
	must.SliceContainsAll(t, []string{"scale default/alone/g", "scale default/pair/g"}, n.nomad.stopped)
	n.after(time.Minute)
	must.Len(t, 2, n.nomad.stopped, must.Sprint("once each"))
	must.Eq(t, 2, n.Actions()[monitor.PolicyAction{Namespace: "default", Action: "stopped"}])
	must.StrNotContains(t, n.log.String(), "s3cret")
}

func TestPolicy_Holds(t *testing.T) {
	for name, c := range map[string]struct {
		beside fakeAlloc
		why    string
	}{
		"one that is not idle":   {fakeAlloc{id: "other", job: "j"}, "1 of its 2 allocations have not been idle for that long, or their use is unknown"},
		"one on another node":    {fakeAlloc{id: "other", job: "j", node: otherNode}, "1 of its 2 allocations are on other nodes"},
		"an instance as a whole": {fakeAlloc{id: "other", job: "j", group: "another", parent: "parent"}, "1 of its 2 allocations have not been idle"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '0s'")
			n.alloc(fakeAlloc{id: "idle", job: "j", parent: c.beside.parent})
			beside := n.alloc(c.beside)
			delete(n.idle, "other")
			held := n.after(time.Hour)
			must.Eq(t, states{"idle": idle.Held}, n.states(held))
			must.StrContains(t, held["claim-idle"].String(), "and not stopped: "+c.why)
			must.SliceEmpty(t, n.nomad.stopped)
			for _, a := range n.nomad.allocs {
				if a.id == beside.id {
					a.status = "complete"
				}
			}
			n.after(heldFor)
			must.Len(t, 1, n.nomad.stopped)
		})
	}
}

// TestPolicy_Instance stops an instance of a parameterized job, which has no group to scale.
func TestPolicy_Instance(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '0s'")
	n.alloc(fakeAlloc{id: "a", job: "train/dispatch-1", parent: "train"})
	n.alloc(fakeAlloc{id: "b", job: "train/dispatch-1", parent: "train", group: "another"})
	n.after(time.Hour)
	must.Eq(t, []string{"stop default/train/dispatch-1"}, n.nomad.stopped)
}

// TestPolicy_StopsPerHour holds the cap, also over a restart of the agent, and gives the stop up that comes first.
func TestPolicy_StopsPerHour(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '0s'\nstops_per_hour = 2")
	for _, job := range []string{"a", "b", "c", "d"} {
		n.alloc(fakeAlloc{id: job, job: job})
	}
	held := n.after(time.Hour)
	must.Eq(t, states{"a": idle.Stopped, "b": idle.Stopped, "c": idle.Held, "d": idle.Held}, n.states(held))
	must.StrContains(t, held["claim-c"].Note, "2 groups were stopped in the last hour, which is idle.stops_per_hour")
	n.after(time.Hour - time.Second)
	must.Len(t, 2, n.nomad.stopped)

	restarted := New(n.Options)
	done, end := context.WithCancel(t.Context())
	restarted.Snapshot = func(context.Context) *monitor.Snapshot { end(); return &monitor.Snapshot{Time: n.now} }
	restarted.Run(done)
	must.Len(t, 2, restarted.stops)
	published, err := idle.Read(n.RunDir)
	must.NoError(t, err)
	must.MapEmpty(t, published.Claims, must.Sprint("nobody stops them while no agent runs"))

	n.after(time.Second)
	must.Len(t, 4, n.nomad.stopped)
}

func TestPolicy_NomadFails(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '0s'\nstops_per_hour = 1")
	n.alloc(fakeAlloc{id: "a", job: "j"})
	n.nomad.down = true
	must.MapEmpty(t, n.after(time.Hour), must.Sprint("the job may have allowed itself more"))
	n.after(time.Second)
	must.Eq(t, 1, strings.Count(n.log.String(), "the token in nomad_token_file needs read-job"))

	n.nomad.down, n.nomad.fail = false, http.StatusBadRequest
	held := n.after(time.Second)
	must.Eq(t, states{"a": idle.Held}, n.states(held))
	must.StrContains(t, held["claim-a"].Note, "scale group g of job j to 0: Unexpected response code: 400")
	must.SliceEmpty(t, n.stops, must.Sprint("Nomad refused"))
	n.nomad.fail = http.StatusInternalServerError
	n.after(failedFor)
	must.Len(t, 1, n.stops, must.Sprint("it may have been stopped"))
	n.nomad.fail = 0
	n.after(failedFor)
	must.SliceEmpty(t, n.nomad.stopped, must.Sprint("the cap"))
	n.after(time.Hour)
	must.Len(t, 1, n.nomad.stopped)
	must.Eq(t, map[monitor.PolicyAction]uint64{
		{Namespace: "default", Action: "warned"}: 1, {Namespace: "default", Action: "failed"}: 2, {Namespace: "default", Action: "stopped"}: 1,
	}, n.Actions())
	must.StrNotContains(t, n.log.String(), "s3cret")
}

// TestPolicy_ExtendedAfterTheWarning does not stop a job that allowed itself more time when it was warned.
func TestPolicy_ExtendedAfterTheWarning(t *testing.T) {
	n := newNode(t, "[idle]\npolicy = 'stop'\nafter = '1h'\ngrace = '10m'")
	n.alloc(fakeAlloc{id: "a", job: "j"})
	must.MapLen(t, 1, n.after(time.Hour))
	n.nomad.allocs[0].meta = map[string]string{MetaKey: "3h"}
	must.MapEmpty(t, n.after(10*time.Minute))
	must.SliceEmpty(t, n.nomad.stopped)
	must.Eq(t, states{"a": idle.Warned}, n.states(n.after(110*time.Minute)))
	n.after(10 * time.Minute)
	must.Len(t, 1, n.nomad.stopped)
}
