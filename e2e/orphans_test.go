//go:build e2e

package e2e

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestOrphans has agents fail as they start, each in another way: none leaves a plugin behind. Nor does one that is killed: the
// next one takes over the task driver, which waits for that.
func TestOrphans(t *testing.T) {
	n := startNode(t)
	bothRun(t, n)
	plain := filepath.Join(n.Dir, "plugins.hcl")
	n.Agent.Stop()
	mustEnd(t, n)

	log := filepath.Join(n.Dir, "nomad.log")
	fails := func(t *testing.T, pluginFile, says string) {
		t.Helper()
		must.NoError(t, os.Truncate(log, 0))
		err := n.Agent.StartWith(deadline(t), pluginFile, "Nomad agent started!")
		must.ErrorContains(t, err, "ended while starting")
		must.NoError(t, until(deadline(t), func() (bool, error) {
			text, err := os.ReadFile(log)
			return strings.Contains(string(text), says), err
		}), must.Sprintf("waiting for %q in %s", says, log))
		mustEnd(t, n)
	}
	t.Run("HTTP port in use", func(t *testing.T) {
		address, err := url.Parse(n.Agent.Address)
		must.NoError(t, err)
		listener, err := net.Listen("tcp", address.Host)
		must.NoError(t, err)
		defer listener.Close()
		fails(t, plain, "address already in use")
	})
	changed := func(t *testing.T, more, from, to string) string {
		t.Helper()
		text, err := os.ReadFile(plain)
		must.NoError(t, err)
		file := filepath.Join(t.TempDir(), "plugins.hcl")
		must.NoError(t, os.WriteFile(file, []byte(more+strings.Replace(string(text), from, to, 1)), 0o644))
		return file
	}
	t.Run("wrong option", func(t *testing.T) {
		fails(t, changed(t, "", `fingerprint_period = "1s"`, `fingerprint_perio = "1s"`), "fingerprint_perio")
	})
	t.Run("wrong value", func(t *testing.T) {
		fails(t, changed(t, "", `fingerprint_period = "1s"`, `fingerprint_period = "often"`), "often")
	})
	t.Run("no such interface", func(t *testing.T) {
		fails(t, changed(t, "client {\n network_interface = \"none0\"\n}\n", "", ""), "none0")
	})
	t.Run("killed", func(t *testing.T) {
		must.NoError(t, n.Agent.Start(deadline(t)))
		must.NoError(t, n.WaitReady(deadline(t)))
		for range 2 {
			n.Agent.Kill()
			must.NoError(t, n.Agent.Start(deadline(t)))
			must.NoError(t, n.WaitReady(deadline(t)))
			bothRun(t, n)
		}
	})
}

// bothRun waits until both plugins run, and nothing else: the agent that starts them has others check its configuration.
func bothRun(t *testing.T, n *node.Node) {
	t.Helper()
	must.NoError(t, until(deadline(t), func() (bool, error) { return len(plugins(t, n)) == 2, nil }),
		must.Func(func() string { return strings.Join(plugins(t, n), ", ") }))
}

// mustEnd waits until no plugin runs.
func mustEnd(t *testing.T, n *node.Node) {
	t.Helper()
	must.NoError(t, until(deadline(t), func() (bool, error) { return len(plugins(t, n)) == 0, nil }),
		must.Func(func() string { return strings.Join(plugins(t, n), ", ") }))
}

// plugins are the processes of Tranche's plugins on the node.
func plugins(t *testing.T, n *node.Node) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must.NoError(t, err)
	var found []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		program, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err == nil && strings.HasPrefix(filepath.Base(program), "nomad-d") && filepath.Dir(program) == filepath.Join(n.BuildDir, "bin") {
			found = append(found, filepath.Base(program)+" "+e.Name())
		}
	}
	return found
}
