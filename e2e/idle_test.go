//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// idlePolicy is the one of docs/operations.md.
const idlePolicy = `
namespace "lab" {
  capabilities = ["read-job", "scale-job"]
}
`

const idleConfig = `
nomad_address    = %q
nomad_token_file = %q
[idle.namespaces.lab]
policy = "stop"
after  = "30s"
grace  = "5s"
[idle]
stops_per_hour = 1
`

// TestIdle has the agent stop, on a real Nomad and with a token of its own, one of two jobs that do not use their GPU: the cap leaves
// the other one. A job that computes, one of which the driver does not say that, one that allows itself more time and one of another
// namespace are not even warned.
func TestIdle(t *testing.T) {
	n := startNode(t, withLongKernels(t))
	token := restartWithACL(t, n, idlePolicy)
	_, err := n.Agent.API.Namespaces().Register(&api.Namespace{Name: "lab"}, nil)
	must.NoError(t, err)
	order(t, n, [][]string{{"nvml-error", "1", "nvmlDeviceGetProcessUtilization", "3"}})
	waits := func(job string, gpu int) task {
		return task{
			job: job, command: "sh", args: []string{"-c", "trap exit TERM; sleep 100000 & wait"}, devices: []string{onGPU(2, gpu)},
		}
	}
	startIn(t, n, "default", waits("elsewhere", 0))
	n.Agent.API.SetNamespace("lab")
	startIn(t, n, "lab", task{job: "busy", command: "gpu-probe", args: []string{"fill"}, devices: []string{onGPU(2, 0)}})
	startIn(t, n, "lab", waits("unknown", 1))
	extended := waits("extended", 0)
	extended.groupExtra = "meta {\n tranche_idle_after = \"1h\"\n}"
	startIn(t, n, "lab", extended)
	startIn(t, n, "lab", waits("first", 0))
	startIn(t, n, "lab", waits("second", 0))
	config := filepath.Join(n.Dir, "idle.toml")
	must.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(idleConfig, n.Agent.Address, token)), 0o600))
	agent := agentURL(t, n, "TRANCHE_CONFIG="+config)

	const held = "and not stopped: idle.stops_per_hour is 1, and so many groups were stopped in the last hour"
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
	must.StrNotContains(t, metrics, `tranche_idle_policy_actions_total{action="failed"`)
	must.Eq(t, 1, strings.Count(metrics, `state="held"`))
	n.Agent.API.SetNamespace("default")
	must.StrNotContains(t, node.Story(running(t, n, "elsewhere")), "idle")
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
