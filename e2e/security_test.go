//go:build e2e

package e2e

import (
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestUsers covers whom a task runs as: a user that Nomad makes up for it, and users of its own.
func TestUsers(t *testing.T) {
	n := startNode(t, func(c *node.Config) {
		c.DriverConfig = "dynamic_workload_users = true\nuserns_range = \"231072:655360\"\n"
	})
	t.Run("made up by Nomad", func(t *testing.T) { testDynamicUser(t, n) })
	t.Run("of its own", func(t *testing.T) { testOwnUsers(t, n) })
	t.Run("of its own, with a fraction", func(t *testing.T) { testOwnUsersFraction(t, n) })
}

func testDynamicUser(t *testing.T, n *node.Node) {
	out := completed(t, n, task{job: "dynamic", command: "sh", args: []string{"-c",
		"id -u; id -g; echo x > /local/f && echo wrote"}})
	fields := strings.Fields(out)
	id, err := strconv.Atoi(fields[0])
	must.NoError(t, err)
	must.Between(t, 80000, id, 89999) // Nomad's default range
	must.Eq(t, []string{fields[0], fields[0], "wrote"}, fields)

	out = completed(t, n, task{job: "named", command: "id", args: []string{"-u"}, taskExtra: `user = "1234"`})
	must.Eq(t, "1234\n", out)
}

func testOwnUsers(t *testing.T, n *node.Node) {
	const template = `template {
		data        = "from the template"
		destination = "secrets/file"
		perms       = "600"
	}
	`
	out := completed(t, n, task{job: "own", command: "sh", configExtra: `userns_mode = "auto"`,
		taskExtra: template + `user = "root"`,
		args:      []string{"-c", "id -u; cat /secrets/file; echo; cat /proc/self/uid_map; echo x > /local/f && echo wrote"}})
	must.Eq(t, []string{"0", "from", "the", "template", "0", "231072", "65536", "wrote"}, strings.Fields(out))

	// Nomad's made-up user is the same inside and outside.
	out = completed(t, n, task{job: "own-dynamic", command: "sh", configExtra: `userns_mode = "auto"`,
		args: []string{"-c", "id -u; cat /proc/self/uid_map"}})
	fields := strings.Fields(out)
	must.Eq(t, []string{fields[0], fields[0], "1"}, fields[4:7])
}

func testOwnUsersFraction(t *testing.T, n *node.Node) {
	start(t, n, task{job: "own-fraction", command: "gpu-probe", args: []string{"fill"}, devices: []string{anyGPU(2)},
		configExtra: `userns_mode = "auto"`, taskExtra: `user = "root"`})
	alloc := running(t, n, "own-fraction")
	saysLine(t, n, alloc.ID, `"computing"`)
	mustHoldExactly(t, n, alloc.ID, 2*gib)
	must.NoError(t, n.StopJob(deadline(t), "own-fraction"))
}
