package explain

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// nomad answers as Nomad's API does; e2e.TestExplain is the test with the real one.
func nomad(t *testing.T, failed map[string]*api.AllocationMetric, allocs []*api.AllocationListStub) *api.Client {
	t.Helper()
	return nomadWith(t, map[string]any{
		"/v1/job/train/plan":                  api.JobPlanResponse{FailedTGAllocs: failed},
		"/v1/job/train/allocations":           []*api.AllocationListStub{},
		"/v1/allocations":                     allocs,
		"/v1/job/train-explained/plan":        api.JobPlanResponse{},
		"/v1/job/train-explained/allocations": []*api.AllocationListStub{},
	})
}

// nomadWith answers some requests, and those about nodes and their allocations.
func nomadWith(t *testing.T, answers map[string]any) *api.Client {
	t.Helper()
	all := map[string]any{
		"/v1/acl/token/self": api.ACLToken{Type: managementToken},

		"/v1/allocations": []*api.AllocationListStub{alloc("running", "a", "b")},
		"/v1/nodes":       []*api.NodeListStub{node("n1", group("slice", "H200/0", 4, "")), node("n2", group("slice", "H200/0", 2, "reserved outside Nomad"))},
	}
	maps.Copy(all, answers)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := all[r.URL.Path]
		if !known {
			http.NotFound(w, r)
			return
		}
		must.NoError(t, json.NewEncoder(w).Encode(answer))
	}))
	t.Cleanup(server.Close)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	must.NoError(t, err)
	return client
}

func node(name string, groups ...*api.NodeDeviceResource) *api.NodeListStub {
	return &api.NodeListStub{ID: name, Name: name, Status: api.NodeStatusReady, NodeResources: &api.NodeResources{Devices: groups}}
}

func group(kind, name string, count int, problem string) *api.NodeDeviceResource {
	g := &api.NodeDeviceResource{Vendor: "nvidia", Type: kind, Name: name}
	for i := range count {
		g.Instances = append(g.Instances, &api.NodeDevice{ID: string(rune('a' + i)), Healthy: problem == "", HealthDescription: problem})
	}
	return g
}

func alloc(status string, ids ...string) *api.AllocationListStub {
	return &api.AllocationListStub{
		JobID: "other", Namespace: "research", NodeID: "n1", ClientStatus: status,
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{
			"t": {Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: "slice", Name: "H200/0", DeviceIDs: ids}}},
		}},
	}
}

func train(device string, count uint64) *api.Job {
	id, groupName := "train", "g"
	return &api.Job{ID: &id, Name: &id, TaskGroups: []*api.TaskGroup{{Name: &groupName, Tasks: []*api.Task{{
		Name: "t", Resources: &api.Resources{Devices: []*api.RequestedDevice{{Name: device, Count: &count}}},
	}}}}}
}

// blocks adds a device block to a job's task.
func blocks(job *api.Job, device string, count uint64) *api.Job {
	resources := job.TaskGroups[0].Tasks[0].Resources
	resources.Devices = append(resources.Devices, &api.RequestedDevice{Name: device, Count: &count})
	return job
}

// times sets the count of a job's group.
func times(job *api.Job, count int) *api.Job {
	job.TaskGroups[0].Count = &count
	return job
}

func TestExplain(t *testing.T) {
	exhausted := &api.AllocationMetric{
		NodesEvaluated: 2, NodesFiltered: 1, NodesExhausted: 1, ConstraintFiltered: map[string]int{"missing devices": 1},
		DimensionExhausted: map[string]int{"devices: no devices match request": 1},
	}
	filtered := &api.AllocationMetric{NodesEvaluated: 2, NodesFiltered: 2, ConstraintFiltered: map[string]int{"missing devices": 2}}
	for name, c := range map[string]struct {
		job     *api.Job
		failed  *api.AllocationMetric
		verdict Verdict
		reason  string
	}{
		"fits":           {train("nvidia/slice", 2), nil, Fits, "has a place"},
		"waits":          {train("nvidia/slice", 3), exhausted, Waits, "requests 3 of nvidia/slice on one GPU, and at most 2 are free on one"},
		"too large":      {train("nvidia/slice", 5), filtered, Never, "no GPU has more than 4"},
		"absent":         {train("nvidia/gpu", 1), filtered, Never, "nvidia/gpu, which no node has (the nodes have nvidia/slice)"},
		"beyond numbers": {train("nvidia/slice", math.MaxUint64), filtered, Never, "no GPU has more than 4"},
		"blocks":         {blocks(train("nvidia/slice", 3), "nvidia/slice", 2), exhausted, Never, "request 5 of nvidia/slice in all, and no node has more than 4"},
		"count":          {times(train("nvidia/slice", 2), 4), exhausted, Never, "has a count of 4, each with 2 of nvidia/slice on one GPU, and all nodes have room for 3 of them"},
		"count waits":    {times(train("nvidia/slice", 2), 3), exhausted, Waits, "too little is free"},
		"by type":        {train("slice", 5), filtered, Never, "no GPU has more than 4"},
		"by name":        {train("nvidia/slice/H200/1", 1), filtered, Never, "which no node has"},
		"constraint":     {train("nvidia/slice", 1), filtered, Never, "leaves out all nodes: missing devices (2 nodes)"},
		"no node at all": {train("nvidia/slice", 1), &api.AllocationMetric{NodePool: "gpu"}, Never, `node pool "gpu"`},
	} {
		t.Run(name, func(t *testing.T) {
			failed := map[string]*api.AllocationMetric{}
			if c.failed != nil {
				failed["g"] = c.failed
			}
			client := nomad(t, failed, []*api.AllocationListStub{alloc("running", "a", "b"), alloc("complete", "c")})
			r, err := Explain(t.Context(), client, c.job)
			must.NoError(t, err)
			must.Len(t, 1, r.Groups)
			must.Eq(t, c.verdict, r.Groups[0].Verdict, must.Sprint(r.Groups[0].Reason))
			must.StrContains(t, r.Groups[0].Reason, c.reason)
		})
	}
}

func TestExplain_Devices(t *testing.T) {
	client := nomad(t, nil, []*api.AllocationListStub{alloc("running", "a", "b"), alloc("pending", "c"), alloc("failed", "d")})
	r, err := Explain(t.Context(), client, train("nvidia/slice", 1))
	must.NoError(t, err)
	must.Eq(t, []Device{
		{Node: "n1", Name: "nvidia/slice/H200/0", Total: 4, Free: 1, Used: []Use{{"other in namespace research", 3}}, Unhealthy: []Use{}},
		{Node: "n2", Name: "nvidia/slice/H200/0", Total: 2, Free: 0, Used: []Use{}, Unhealthy: []Use{{"reserved outside Nomad", 2}}},
	}, r.Devices)
}

// A token that does not see all allocations has the nodes say which devices others have.
func TestExplain_Unseen(t *testing.T) {
	type values map[string]any
	claimed := values{"Stats": values{"Attributes": values{"Claim": values{"StringVal": "00c0ffee"}}}}
	answers := map[string]any{
		"/v1/job/train/plan":        api.JobPlanResponse{FailedTGAllocs: map[string]*api.AllocationMetric{"g": {NodesEvaluated: 2, NodesExhausted: 1}}},
		"/v1/job/train/allocations": []*api.AllocationListStub{},
		"/v1/acl/token/self":        api.ACLToken{Type: "client"},
		"/v1/client/stats":          values{"DeviceStats": []values{{"InstanceStats": values{"b": claimed, "d": claimed}}}},
	}
	r, err := Explain(t.Context(), nomadWith(t, answers), train("nvidia/slice", 3))
	must.NoError(t, err)
	must.Eq(t, Device{
		Node: "n1", Name: "nvidia/slice/H200/0", Total: 4, Free: 1, Unhealthy: []Use{},
		Used: []Use{{"other in namespace research", 2}, {"allocations that the token may not see", 1}},
	}, r.Devices[0])
	must.StrContains(t, r.Groups[0].Reason, "at most 1 are free on one")
	must.Eq(t, []Use{{"reserved outside Nomad", 2}}, r.Devices[1].Unhealthy)

	delete(answers, "/v1/client/stats")
	r, err = Explain(t.Context(), nomadWith(t, answers), train("nvidia/slice", 3))
	must.NoError(t, err)
	must.Eq(t, []Use{{"not known", 2}, {"other in namespace research", 2}}, r.Devices[0].Used)
}

// Of a job that is dispatched, what is dispatched is planned.
func TestExplain_Parameterized(t *testing.T) {
	client := nomad(t, map[string]*api.AllocationMetric{"g": {}}, nil)
	job := train("nvidia/slice", 1)
	job.ParameterizedJob = &api.ParameterizedJobConfig{}
	r, err := Explain(t.Context(), client, job)
	must.NoError(t, err)
	must.Eq(t, Fits, r.Groups[0].Verdict)
	must.Eq(t, "train", r.Job)
}

// TestWaiting says of each group that is blocked what it lacks, and counts those that lack something else than devices.
func TestWaiting(t *testing.T) {
	exhausted := &api.AllocationMetric{NodesEvaluated: 2, NodesExhausted: 2, DimensionExhausted: map[string]int{"devices: no devices match request": 2}}
	job := train("nvidia/slice", 3)
	other := "cpu"
	job.TaskGroups = append(job.TaskGroups, &api.TaskGroup{Name: &other, Tasks: []*api.Task{{Name: "t"}}})
	client := nomadWith(t, map[string]any{
		"/v1/evaluations": []*api.Evaluation{
			{JobID: "gone", Namespace: "default", CreateTime: 1, FailedTGAllocs: map[string]*api.AllocationMetric{"g": exhausted}},
			{JobID: "train", Namespace: "research", CreateTime: 2e9, FailedTGAllocs: map[string]*api.AllocationMetric{"g": exhausted, "cpu": exhausted}},
			{JobID: "train", Namespace: "research", CreateTime: 3e9, FailedTGAllocs: map[string]*api.AllocationMetric{"g": exhausted}},
			{JobID: "large", Namespace: "default", CreateTime: 1e9, FailedTGAllocs: map[string]*api.AllocationMetric{"g": exhausted}},
		},
		"/v1/job/train": job, "/v1/job/large": train("nvidia/slice", 5),
	})
	q, err := Waiting(t.Context(), client, nil)
	must.NoError(t, err)
	must.Eq(t, 1, q.Others)
	must.Len(t, 2, q.Groups)
	must.Eq(t, "large", q.Groups[0].Job) // it was tried first
	must.Eq(t, Never, q.Groups[0].Verdict)
	must.Eq(t, "research", q.Groups[1].Namespace)
	must.Eq(t, time.Unix(2, 0), q.Groups[1].Tried)
	must.Eq(t, Waits, q.Groups[1].Verdict)
	must.StrContains(t, q.Groups[1].Reason, "requests 3 of nvidia/slice on one GPU, and at most 2 are free on one")
	must.Len(t, 2, q.Devices)
}

func TestWaiting_Nothing(t *testing.T) {
	q, err := Waiting(t.Context(), nomadWith(t, map[string]any{"/v1/evaluations": []*api.Evaluation{}}), nil)
	must.NoError(t, err)
	must.Len(t, 0, q.Groups)
	_, err = Waiting(t.Context(), nomadWith(t, nil), nil)
	must.ErrorContains(t, err, "list Nomad's blocked evaluations: ")
}

func TestFind_Nothing(t *testing.T) {
	_, err := Find(t.Context(), nomad(t, nil, nil), "nothing", "", "")
	must.ErrorContains(t, err, `there is no file and no job "nothing" in namespace "default"`)
}
