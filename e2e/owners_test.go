//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/e2e/node"
)

// ownersPolicy is the one of docs/device.md.
const ownersPolicy = `
namespace "*" { policy = "read" }
node { policy = "read" }
agent { policy = "read" }
`

// TestOwners has the device plugin look up in Nomad, whose API wants tokens, for whom a claim was made whose task never
// started: Nomad's docker driver does not find its image, and neither our driver nor our runtime sees anything of it.
func TestOwners(t *testing.T) {
	b := startBeside(t, func(c *node.Config) {
		c.Docker = true
		c.PluginBlocks = strings.ReplaceAll(`plugin "docker" {
  config {
    endpoint       = "unix://DIR/d/docker.sock"
    nvidia_runtime = "tranche"
    allow_runtimes = ["runc", "tranche"]
  }
}
`, "DIR", c.Dir)
	})
	_, err := b.WaitNode(deadline(t), func(n *api.Node) bool { d := n.Drivers["docker"]; return d != nil && d.Healthy })
	must.NoError(t, err)
	b.Agent.Stop()
	token := filepath.Join(b.Dir, "token")
	text, err := os.ReadFile(filepath.Join(b.Dir, "plugins.hcl"))
	must.NoError(t, err)
	const setting = `fingerprint_period = "1s"`
	must.StrContains(t, string(text), setting)
	file := filepath.Join(b.Dir, "acl.hcl")
	must.NoError(t, os.WriteFile(file, []byte("acl {\n enabled = true\n}\n"+strings.Replace(string(text), setting,
		fmt.Sprintf("%s\nnomad_address = %q\nnomad_token_file = %q", setting, b.Agent.Address, token), 1)), 0o600))
	must.NoError(t, b.Agent.StartWith(deadline(t), file, "Nomad agent started!"))
	bootstrapACL(t, b.Node, ownersPolicy, token)
	_, err = b.WaitNode(deadline(t), func(n *api.Node) bool {
		d := n.Drivers["docker"]
		return n.Status == "ready" && d != nil && d.Healthy && len(n.NodeResources.Devices) > 0
	})
	must.NoError(t, err)

	start(t, b.Node, task{job: "absent", driver: "docker", image: "tranche.local/absent:1", devices: []string{onGPU(140, 0)},
		configExtra: "runtime = \"tranche\""})
	alloc, err := b.WaitStatus(deadline(t), "absent", "failed")
	must.NoError(t, err)
	ledger := openLedger(t, b.Node)
	reserved := b.of(t, claim.OwnerNomad)
	must.NotNil(t, reserved)
	c := b.state(t, claim.StateDormant)
	must.Less(t, claim.StartTimeout, time.Since(c.Created), must.Sprint("it would be dormant without Nomad's API as well"))
	noted, _ := ledger.Workload(c.ID)
	must.Eq(t, claim.Workload{Namespace: "default", Job: "absent", Group: "g", Task: "t", Allocation: alloc.ID, Verified: true}, noted)
	b.run(t, b.wholeGPU("after"))
	b.remove(t, "after")

	secret, err := os.ReadFile(token)
	must.NoError(t, err)
	log, err := os.ReadFile(filepath.Join(b.Dir, "nomad.log"))
	must.NoError(t, err)
	must.StrNotContains(t, string(log), strings.TrimSpace(string(secret)))
}

// bootstrapACL has the node's API use the management token, and writes one with a policy into a file.
func bootstrapACL(t *testing.T, n *node.Node, policy, file string) {
	t.Helper()
	var management *api.ACLToken
	must.NoError(t, until(deadline(t), func() (bool, error) {
		var err error
		management, _, err = n.Agent.API.ACLTokens().Bootstrap(nil)
		return err == nil, nil // there may be no leader yet
	}))
	n.Agent.API.SetSecretID(management.SecretID)
	writeToken(t, n, "tranche", policy, file)
}

// writeToken writes a token with a policy, both of a name, into a file.
func writeToken(t *testing.T, n *node.Node, name, policy, file string) {
	t.Helper()
	_, err := n.Agent.API.ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: policy}, nil)
	must.NoError(t, err)
	token, _, err := n.Agent.API.ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}}, nil)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(file, []byte(token.SecretID+"\n"), 0o600))
}
