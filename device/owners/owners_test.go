package owners

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/share"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

const (
	testGPU   = "GPU-11111111-1111-1111-1111-111111111111"
	testToken = "9f8e7d6c-secret"
	testNode  = "6e1f5c1e-0000-4000-8000-000000000000"
)

// server is an agent's API as far as it is asked.
type server struct {
	*httptest.Server
	allocations []map[string]any
	asked       int
	status      int
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, r *http.Request, value any) {
		switch {
		case r.Header.Get("X-Nomad-Token") != testToken:
			http.Error(w, "Permission denied", http.StatusForbidden)
		case s.status != 0:
			w.Header().Set("Location", "/v1/elsewhere")
			w.WriteHeader(s.status)
		default:
			_ = json.NewEncoder(w).Encode(value)
		}
	}
	mux.HandleFunc("GET /v1/agent/self", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, map[string]any{"stats": map[string]any{"client": map[string]string{"node_id": testNode}}})
	})
	mux.HandleFunc("GET /v1/node/"+testNode+"/allocations", func(w http.ResponseWriter, r *http.Request) {
		s.asked++
		answer(w, r, s.allocations)
	})
	mux.HandleFunc("/v1/elsewhere", func(http.ResponseWriter, *http.Request) { t.Error("the token was sent elsewhere") })
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// allocate adds an allocation whose task has devices.
func (s *server) allocate(id, status string, created time.Time, devices ...string) {
	s.allocations = append(s.allocations, map[string]any{
		"ID": id, "Namespace": "ml", "JobID": "web/periodic-1", "TaskGroup": "g", "ClientStatus": status, "CreateTime": created.UnixNano(),
		"Job": map[string]string{"ParentID": "web"},
		"AllocatedResources": map[string]any{"Tasks": map[string]any{
			"sidecar": map[string]any{"Devices": nil},
			"train":   map[string]any{"Devices": []any{map[string]any{"DeviceIDs": devices}}},
		}},
	})
}

func newOwners(t *testing.T, address string) *Owners {
	t.Helper()
	dir := t.TempDir()
	ledger, err := claim.Open(claim.Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")})
	must.NoError(t, err)
	runtimetest.WriteFile(t, filepath.Join(dir, "token"), testToken+"\n")
	return New(nomadapi.Options{Address: address, TokenFile: filepath.Join(dir, "token")}, &share.Ledger{
		Ledger: ledger, Clock: &share.Clock{Now: time.Now, After: time.After}, Logger: hclog.NewNullLogger(),
	}, hclog.NewNullLogger())
}

// reserve makes a claim of Nomad's, and returns it with the token's environment.
func (o *Owners) reserve(t *testing.T, from int) (*claim.Claim, map[string]string) {
	t.Helper()
	c, token, err := o.ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: testGPU}, Slices: []string{claim.SliceName(testGPU, from), claim.SliceName(testGPU, from+1)},
		LimitBytes: 2 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	return c, map[string]string{token.EnvName(): token.Reveal()}
}

func (o *Owners) workload(c *claim.Claim) claim.Workload {
	w, _ := o.ledger.Workload(c.ID)
	return w
}

func TestOwners_MatchesByDevices(t *testing.T) {
	s := newServer(t)
	o := newOwners(t, s.URL)
	pulling, _ := o.reserve(t, 0)
	failed, _ := o.reserve(t, 2)
	stranger, _ := o.reserve(t, 4)
	now := time.Now()
	s.allocate("old", "complete", now.Add(-time.Hour), pulling.Slices[1], pulling.Slices[0])
	s.allocate("mine", "pending", now, pulling.Slices[1], pulling.Slices[0])
	s.allocate("part", "running", now, pulling.Slices[0])
	s.allocate("later", "pending", now.Add(time.Hour), pulling.Slices...)
	s.allocate("gone", "failed", now, failed.Slices...)
	must.NoError(t, o.ledger.NoteWorkload(t.Context(), pulling.ID, claim.Workload{Job: "forged", ContainerName: "train-mine"}))
	must.NoError(t, o.Update(t.Context()))

	want := claim.Workload{
		Namespace: "ml", Job: "web/periodic-1", ParentJob: "web", Group: "g", Task: "train", Allocation: "mine", ContainerName: "train-mine",
		Verified: true,
	}
	must.Eq(t, want, o.workload(pulling))
	want.Allocation, want.ContainerName = "gone", ""
	must.Eq(t, want, o.workload(failed))
	must.True(t, o.workload(stranger).IsZero())

	states := map[string]claim.State{}
	all, _, err := o.ledger.List(t.Context())
	must.NoError(t, err)
	for _, c := range all {
		states[c.ID] = o.ledger.State(c, time.Now())
	}
	must.Eq(t, map[string]claim.State{
		pulling.ID: claim.StateReserved, failed.ID: claim.StateDormant, stranger.ID: claim.StateReserved,
	}, states)
}

func TestOwners_AsksOnlyWhereSomethingIsUnclear(t *testing.T) {
	s := newServer(t)
	o := newOwners(t, s.URL)
	must.NoError(t, o.Update(t.Context()))
	must.Eq(t, 0, s.asked, must.Sprint("there is no claim"))

	known, env := o.reserve(t, 0)
	must.NoError(t, o.ledger.NoteWorkload(t.Context(), known.ID, claim.Workload{Job: "web", Verified: true}))
	must.NoError(t, o.ledger.GiveUp(t.Context(), env))
	must.NoError(t, o.Update(t.Context()))
	must.Eq(t, 0, s.asked, must.Sprint("all is known"))

	o.reserve(t, 2)
	must.NoError(t, o.Update(t.Context()))
	must.NoError(t, o.Update(t.Context()))
	must.Eq(t, 2, s.asked)
	o.ledger.Clock.Now = func() time.Time { return time.Now().Add(claim.StartTimeout + time.Minute) }
	must.NoError(t, o.Update(t.Context()))
	must.Eq(t, 2, s.asked, must.Sprint("Nomad does not know the claim"))
}

func TestOwners_Errors(t *testing.T) {
	s := newServer(t)
	o := newOwners(t, s.URL)
	c, _ := o.reserve(t, 0)
	s.allocate("mine", "pending", time.Now(), c.Slices...)
	file := o.client.options.TokenFile
	check := func(want string) {
		t.Helper()
		err := o.Update(t.Context())
		must.ErrorContains(t, err, want)
		must.StrNotContains(t, err.Error(), "secret")
	}
	o.client.options.TokenFile = file + "-absent"
	check("nomad_token_file: open " + file + "-absent: no such file or directory; create it or correct the path")
	runtimetest.WriteFile(t, file+"-other", "another-secret")
	o.client.options.TokenFile = file + "-other"
	check("the token in nomad_token_file needs agent:read")
	o.client.options.TokenFile = file
	s.status = http.StatusTemporaryRedirect
	check("GET /v1/agent/self: 307")
	s.status = 0
	o.client.options.CAFile = file
	check("nomad_ca_file: " + file + " has no certificate")
	o.client.options.CAFile = file + "-absent"
	check("nomad_ca_file: open " + file + "-absent: no such file or directory; create it or correct the path")
	o.client.options.CAFile = ""
	o.ledger.Clock.Now = func() time.Time { return time.Now().Add(claim.StartTimeout + time.Minute) }
	must.NoError(t, o.Update(t.Context()))
	must.Eq(t, "mine", o.workload(c).Allocation, must.Sprint("a query that failed counts as one that found nothing"))
	s.Close()
	o.reserve(t, 2)
	check("connect")
}
