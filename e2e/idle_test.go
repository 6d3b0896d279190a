//go:build e2e

package e2e

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/agent/policy"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/internal/explain"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/internal/nomadclient"
)

// idlePolicy has the rights of docs/operations.md, and for the last namespace too few.
const idlePolicy = `
namespace "lab" {
  capabilities = ["read-job", "scale-job"]
}
namespace "batch" {
  capabilities = ["read-job", "submit-job"]
}
namespace "readonly" {
  capabilities = ["read-job"]
}
`

const idleConfig = `
nomad_address    = %q
nomad_token_file = %q
[idle.namespaces.lab]
policy = "stop"
after  = "30s"
grace  = "5s"
[idle.namespaces.batch]
policy = "stop"
after  = "30s"
grace  = "0s"
[idle.namespaces.readonly]
policy = "stop"
after  = "30s"
grace  = "0s"
[idle]
stops_per_hour = 2
webhook_file   = %q
`

// TestIdle has the agent stop, on a real Nomad and with a token of its own, an instance of a parameterized job and one of two jobs that
// do not use their GPU: the cap leaves the other one. A job that computes, one of which the driver does not say that, one that allows
// itself more time and one of another namespace are not even warned. Nomad refuses the stop for which the token has no right.
func TestIdle(t *testing.T) {
	n := startNode(t, withLongKernels(t))
	token := restartWithACL(t, n, idlePolicy)
	for _, name := range []string{"lab", "batch", "readonly"} {
		_, err := n.Agent.API.Namespaces().Register(&api.Namespace{Name: name}, nil)
		must.NoError(t, err)
	}
	order(t, n, [][]string{{"nvml-error", "1", "nvmlDeviceGetProcessUtilization", "3"}})
	waits := func(job string, gpu int) task {
		return task{
			job: job, command: "sh", args: []string{"-c", "trap exit TERM; sleep 100000 & wait"}, devices: []string{onGPU(2, gpu)},
		}
	}
	startIn(t, n, "default", waits("elsewhere", 0))
	instance := dispatch(t, n, "batch", waits("sweep", 0))
	refused := dispatch(t, n, "readonly", waits("fixed", 0))
	n.Agent.API.SetNamespace("lab")
	startIn(t, n, "lab", task{job: "busy", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(2, 0)}})
	startIn(t, n, "lab", waits("unknown", 1))
	extended := waits("extended", 0)
	extended.groupExtra = "meta {\n tranche_idle_after = \"1h\"\n}"
	startIn(t, n, "lab", extended)
	startIn(t, n, "lab", waits("first", 0))
	startIn(t, n, "lab", waits("second", 0))
	hook := startHook(t)
	config := filepath.Join(n.Dir, "idle.toml")
	must.NoError(t, os.WriteFile(config, fmt.Appendf(nil, idleConfig, n.Agent.Address, token, hook.file), 0o600))
	agent := agentURL(t, n, "TRANCHE_CONFIG="+config, "SSL_CERT_FILE="+hook.certificates)

	const held = "and not stopped: 2 groups were stopped in the last hour, which is idle.stops_per_hour"
	var stopped, spared string
	for _, job := range []string{"first", "second"} {
		alloc, err := n.WaitAlloc(deadline(t), job, func(a *api.AllocationListStub) bool {
			return a.ClientStatus == api.AllocClientStatusComplete || strings.Contains(node.Story(a), held)
		})
		must.NoError(t, err)
		must.StrContains(t, node.Story(alloc), "its group is stopped at 20", must.Sprint("no warning"))
		if strings.Contains(node.Story(alloc), held) {
			spared = job
		} else {
			stopped = job
		}
	}
	must.NotEq(t, "", stopped, must.Sprint("no job was stopped"))
	must.NotEq(t, "", spared, must.Sprint("the cap did not hold"))

	scaled, _, err := n.Agent.API.Jobs().ScaleStatus(stopped, nil)
	must.NoError(t, err)
	must.Eq(t, 0, scaled.TaskGroups["g"].Desired)
	must.StrContains(t, scaled.TaskGroups["g"].Events[0].Message, "lab/"+stopped+"/g has not used its GPU since 20")
	for _, job := range []string{spared, "busy", "unknown", "extended"} {
		alloc := running(t, n, job)
		if job != spared {
			must.StrNotContains(t, node.Story(alloc), "idle")
		}
	}
	var metrics string
	must.NoError(t, until(deadline(t), func() (bool, error) { // a snapshot may be a second old
		metrics = read(t, agent+"/metrics")
		return strings.Contains(metrics, `tranche_idle_policy_actions_total{action="stopped",namespace="lab"} 1`), nil
	}))
	must.StrContains(t, metrics, `tranche_idle_policy_actions_total{action="warned",namespace="lab"} 2`)
	must.StrContains(t, metrics, `tranche_idle_policy_actions_total{action="stopped",namespace="batch"} 1`)
	must.StrContains(t, metrics, `tranche_idle_policy_actions_total{action="failed",namespace="readonly"} 1`)
	must.Eq(t, 1, strings.Count(metrics, `tranche_idle_policy_actions_total{action="failed"`))
	must.Eq(t, 2, strings.Count(metrics, `state="held"`))
	n.Agent.API.SetNamespace("default")
	must.StrNotContains(t, node.Story(running(t, n, "elsewhere")), "idle")

	n.Agent.API.SetNamespace("batch")
	job, _, err := n.Agent.API.Jobs().Info(instance, nil)
	must.NoError(t, err)
	must.True(t, *job.Stop)
	job, _, err = n.Agent.API.Jobs().Info("sweep", nil)
	must.NoError(t, err)
	must.False(t, *job.Stop)
	n.Agent.API.SetNamespace("readonly")
	must.StrContains(t, node.Story(running(t, n, refused)), "not stopped: stop job "+refused+": Unexpected response code: 403 (Permission denied); "+
		"the token in nomad_token_file needs read-job, and to stop groups scale-job, in the namespace (submit-job for instances")
	hook.got(t, "warned lab/first", "warned lab/second", "warned batch/"+instance, "warned readonly/"+refused, "stopped batch/"+instance,
		"stopped lab/"+stopped)
	keepPictures(t, agent)
	testWaiting(t, n, agent)
}

// waitingPolicy is the one of docs/operations.md for the page Waiting.
const waitingPolicy = `
namespace "*" {
  capabilities = ["read-job"]
}
node {
  policy = "read"
}
`

// testWaiting has tokens with different rights look for what waits, before anything does and when two jobs do.
func testWaiting(t *testing.T, n *node.Node, agent string) {
	t.Helper()
	tokens := []struct {
		name, policy, refused string
		sees                  []string
	}{
		{"whole", waitingPolicy, "", []string{"default/large", "lab/large"}},
		{"one-namespace", strings.Replace(waitingPolicy, "*", "lab", 1), "", []string{"lab/large"}},
		{"lists-only", strings.Replace(waitingPolicy, "read-job", "list-jobs", 1), "list Nomad's blocked evaluations", nil},
		{"no-namespace", "node {\n policy = \"read\"\n}\n", "list Nomad's blocked evaluations", nil},
		{"no-nodes", strings.Split(waitingPolicy, "node {")[0], "list Nomad's nodes", nil},
	}
	looks := func(waits bool) {
		t.Helper()
		for _, token := range tokens {
			client, err := nomadclient.New(nomadapi.Options{Address: n.Agent.Address, TokenFile: filepath.Join(n.Dir, token.name)})
			must.NoError(t, err)
			defer client.Close()
			queue, err := explain.Waiting(deadline(t), client, nil)
			if token.refused != "" {
				must.ErrorContains(t, err, token.refused+": Unexpected response code: 403", must.Sprint(token.name))
				continue
			}
			must.NoError(t, err, must.Sprint(token.name))
			var sees []string
			for _, g := range queue.Groups {
				sees = append(sees, g.Namespace+"/"+g.Job)
			}
			if !waits {
				must.SliceEmpty(t, sees)
				continue
			}
			must.SliceContainsAll(t, token.sees, sees, must.Sprint(token.name))
		}
	}
	for _, token := range tokens {
		writeToken(t, n, token.name, token.policy, filepath.Join(n.Dir, token.name))
	}
	looks(false)
	for _, namespace := range []string{"default", "lab"} {
		n.Agent.API.SetNamespace(namespace)
		job, err := n.ParseJob(task{job: "large", command: "true", devices: []string{onGPU(140, 0)}}.hcl())
		must.NoError(t, err)
		job.Namespace = &namespace
		evaluation, err := n.Run(deadline(t), job)
		must.NoError(t, err)
		must.NotEq(t, "", evaluation.BlockedEval)
	}
	looks(true)

	response, err := http.Get(agent + "/waiting") // with the token of the policy, which may not read nodes
	must.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(t, err)
	must.Eq(t, http.StatusBadGateway, response.StatusCode)
	must.StrContains(t, string(body), "list Nomad&#39;s nodes: Unexpected response code: 403 (Permission denied); the token in nomad_token_file needs "+
		"read-job in the namespaces that are to be seen, and node:read")
}

// dispatch runs a parameterized job in a namespace and returns its instance once that runs. The node's API is left in the namespace.
func dispatch(t *testing.T, n *node.Node, namespace string, s task) (instance string) {
	t.Helper()
	n.Agent.API.SetNamespace(namespace)
	s.jobType = "batch"
	job, err := n.ParseJob(s.hcl())
	must.NoError(t, err, must.Sprint(s.hcl()))
	job.Namespace, job.ParameterizedJob = &namespace, &api.ParameterizedJobConfig{}
	_, _, err = n.Agent.API.Jobs().Register(job, nil)
	must.NoError(t, err)
	dispatched, _, err := n.Agent.API.Jobs().Dispatch(s.job, nil, nil, "", nil)
	must.NoError(t, err)
	running(t, n, dispatched.DispatchedJobID)
	return dispatched.DispatchedJobID
}

// hook is a webhook with a certificate of its own.
type hook struct {
	// file has its URL, and certificates what it is trusted by.
	file, certificates string
	notices            chan policy.Notice
}

func startHook(t *testing.T) *hook {
	t.Helper()
	h := &hook{
		file: filepath.Join(t.TempDir(), "webhook"), certificates: filepath.Join(t.TempDir(), "ca.pem"), notices: make(chan policy.Notice, 100),
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n policy.Notice
		if err := json.NewDecoder(r.Body).Decode(&n); err != nil || r.URL.String() != "/hook?key=S3CRET" {
			http.Error(w, "no notice", http.StatusBadRequest)
			return
		}
		h.notices <- n
	}))
	t.Cleanup(server.Close)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	must.NoError(t, os.WriteFile(h.certificates, certificate, 0o600))
	must.NoError(t, os.WriteFile(h.file, []byte(server.URL+"/hook?key=S3CRET\n"), 0o600))
	return h
}

// got waits for notices, each an event and a job, and makes sure that there are no others.
func (h *hook) got(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for ctx := deadline(t); len(got) < len(want); {
		select {
		case n := <-h.notices:
			must.Len(t, 1, n.Allocations)
			got = append(got, string(n.Event)+" "+n.Namespace+"/"+n.Job)
		case <-ctx.Done():
			t.Fatalf("the webhook got only %q", got)
		}
	}
	must.SliceContainsAll(t, want, got)
}

// keepPictures keeps pictures of claims that are idle, if these are wanted.
func keepPictures(t *testing.T, agent string) {
	if os.Getenv(screenshots) == "" {
		return
	}
	b := openBrowser(t)
	b.open(agent+"/idle", 1200, 600)
	b.picture(t, "idle")
}

// restartWithACL starts a node's agent again with an API that wants tokens, and returns a file with one that has a policy.
func restartWithACL(t *testing.T, n *node.Node, policy string) string {
	t.Helper()
	n.Agent.Stop()
	plugins, err := os.ReadFile(filepath.Join(n.Dir, "plugins.hcl"))
	must.NoError(t, err)
	file, token := filepath.Join(n.Dir, "acl.hcl"), filepath.Join(n.Dir, "token")
	must.NoError(t, os.WriteFile(file, append([]byte("acl {\n enabled = true\n}\n"), plugins...), 0o600))
	must.NoError(t, n.Agent.StartWith(deadline(t), file, "Nomad agent started!"))
	bootstrapACL(t, n, policy, token)
	must.NoError(t, n.WaitReady(deadline(t)))
	return token
}

// startIn starts a task in a namespace, which is the one of the node's API, and waits until it runs.
func startIn(t *testing.T, n *node.Node, namespace string, s task) {
	t.Helper()
	job, err := n.ParseJob(s.hcl())
	must.NoError(t, err, must.Sprint(s.hcl()))
	job.Namespace = &namespace
	_, err = n.Run(deadline(t), job)
	must.NoError(t, err)
	running(t, n, s.job)
}
