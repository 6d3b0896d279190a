// Package agenttest has a test binary be a plugin that an agent starts, and the agent die.
package agenttest

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

const asPlugin = "TRANCHE_TEST_AS_PLUGIN"

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// IsPlugin is for TestMain: whether this process is to be the plugin.
func IsPlugin() bool { return os.Getenv(asPlugin) != "" }

// Plugin is a plugin's process, and a shell that stands in for the agent.
type Plugin struct {
	agent *exec.Cmd
	pid   int
	// Address is what go-plugin prints: where the plugin listens.
	Address string
	ended   chan error
}

// Start starts an agent that starts the test binary as its plugin. It returns when the plugin listens.
func Start(t *testing.T, env ...string) *Plugin {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	output, theirs, err := os.Pipe()
	must.NoError(t, err)
	p := &Plugin{agent: exec.CommandContext(t.Context(), "sh", "-c", `"$0" & echo "pid $!"; wait`, self), ended: make(chan error, 1)}
	p.agent.Env = append(os.Environ(), append(env, asPlugin+"=1", base.Handshake.MagicCookieKey+"="+base.Handshake.MagicCookieValue)...)
	p.agent.Stdout, p.agent.Stderr = theirs, os.Stderr
	must.NoError(t, p.agent.Start())
	theirs.Close()
	t.Cleanup(func() {
		_ = p.agent.Process.Kill()
		_ = p.agent.Wait()
		if p.pid != 0 {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		output.Close()
	})
	lines := bufio.NewReader(output)
	for p.pid == 0 || p.Address == "" {
		line, err := lines.ReadString('\n')
		must.NoError(t, err)
		if pid, ok := strings.CutPrefix(strings.TrimSpace(line), "pid "); ok {
			p.pid, err = strconv.Atoi(pid)
			must.NoError(t, err)
		} else if parts := strings.Split(line, "|"); len(parts) > 3 {
			p.Address = parts[2] + ":" + parts[3]
		}
	}
	// Only the plugin has the pipe when its agent is gone.
	go func() { _, err := io.Copy(io.Discard, lines); p.ended <- err }()
	return p
}

// KillAgent kills the agent, as the kernel does that is out of memory, and returns when the plugin has another parent.
func (p *Plugin) KillAgent(t *testing.T) {
	t.Helper()
	must.NoError(t, p.agent.Process.Kill())
	must.Error(t, p.agent.Wait())
}

// Ends waits for the plugin's end.
func (p *Plugin) Ends(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.ended:
		must.True(t, err == nil || errors.Is(err, os.ErrClosed), must.Sprint(err))
		p.pid = 0
	case <-time.After(patience):
		t.Fatal("the plugin goes on without its agent")
	}
}

// Lives checks that the plugin has not ended so far.
func (p *Plugin) Lives(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.ended:
		t.Fatalf("the plugin has ended: %v", err)
	default:
	}
}
