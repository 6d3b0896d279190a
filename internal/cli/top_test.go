package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// tmux is a terminal of 110 columns and 30 rows.
type tmux struct{ socket string }

func (x *tmux) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "tmux", append([]string{"-S", x.socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return string(out)
}

// waitScreen waits until a text is on the screen, or is not. tmux has no event for what a program draws.
func (x *tmux) waitScreen(t *testing.T, text string, wanted bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		screen := x.run(t, "capture-pane", "-p", "-t", "top")
		if strings.Contains(screen, text) == wanted {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%q is on the screen: %t, want %t:\n%s", text, !wanted, wanted, screen)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestTop_Terminal uses `tranche top` in a real terminal.
func TestTop_Terminal(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("TRANCHE_REQUIRE_ROOT") != "" {
			t.Fatal("tmux is missing")
		}
		t.Skip("tmux is missing")
	}
	n := newNode(t, nvmltest.New(nvmltest.H200(0), nvmltest.H200(1)))
	first := n.reserve(t, nvmltest.H200(0), 0, 7)
	must.NoError(t, n.ledger.NoteWorkload(t.Context(), first.ID, claim.Workload{Namespace: "default", Job: "train-\x1b[2J", Verified: true}))
	second := n.reserve(t, nvmltest.H200(1), 0, 1)

	self, err := os.Executable()
	must.NoError(t, err)
	dir, err := os.MkdirTemp("", "top") // the path of a socket is short
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	x := &tmux{filepath.Join(dir, "tmux")}
	x.run(t, "new-session", "-d", "-s", "top", "-x", "110", "-y", "30",
		// without the variables of tests, of which the command warns on the screen; tmux itself sometimes misses the end of a program
		`env -i TERM="$TERM" PATH="$PATH" TRANCHE_TEST_CLI=fake '`+self+"' top --interval 500ms --state-dir "+n.stateDir+
			" --run-dir "+n.runDir+`; echo "it has ended: $?"; exec sleep 1000`)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", x.socket, "kill-server").Run() })

	x.waitScreen(t, `default/train-\x1b[2J`, true)
	x.waitScreen(t, "132 of 140 slices free", true)
	x.waitScreen(t, second.ID, true)
	x.run(t, "send-keys", "-t", "top", "/", "train", "Enter")
	x.waitScreen(t, second.ID, false)
	x.waitScreen(t, first.ID, true)
	x.run(t, "send-keys", "-t", "top", "Escape")
	x.waitScreen(t, second.ID, true)
	x.run(t, "send-keys", "-t", "top", "s")
	x.waitScreen(t, "by used", true)
	x.run(t, "send-keys", "-t", "top", "Space")
	x.waitScreen(t, "PAUSED", true)
	must.NoError(t, n.ledger.Drop(t.Context(), second.ID))
	x.run(t, "send-keys", "-t", "top", "Space")
	x.waitScreen(t, second.ID, false)
	x.run(t, "resize-window", "-t", "top", "-x", "60", "-y", "15")
	x.waitScreen(t, "…", true)
	x.run(t, "send-keys", "-t", "top", "q")
	x.waitScreen(t, "it has ended: 0", true)
}

func TestTop_Once(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	c := n.reserve(t, nvmltest.H200(0), 0, 7)
	code, stdout, stderr := n.command("top", "--once", "--state-dir", n.stateDir, "--run-dir", n.runDir)
	must.Eq(t, 0, code, must.Sprint(stderr))
	must.StrContains(t, stdout, "132 of 140 slices free")
	must.StrContains(t, stdout, c.ID)
	code, stdout, _ = n.command("top", "--once", "--state-dir", t.TempDir(), "--run-dir", n.runDir)
	must.Zero(t, code)
	must.StrContains(t, stdout, "\nNo claims.\n")
	code, _, stderr = n.command("top", "--state-dir", n.stateDir, "--run-dir", n.runDir)
	must.Eq(t, exitFailure, code)
	must.StrContains(t, stderr, "print the state with --once")
}

// A script must not take what is shown without NVML or the ledger for all that there is.
func TestTop_OnceIncomplete(t *testing.T) {
	noGPUs, noLedger := newNode(t, nvml.New(t.TempDir())), newNode(t, nvmltest.New(nvmltest.H200(0)))
	must.NoError(t, os.WriteFile(filepath.Join(noLedger.stateDir, "claims"), nil, 0o600))
	for source, n := range map[string]*statusNode{"nvml": noGPUs, "ledger": noLedger} {
		for _, form := range []string{"--once", "--once=true --json"} {
			code, stdout, stderr := n.command(slices.Concat([]string{"top", "--state-dir", n.stateDir, "--run-dir", n.runDir}, strings.Fields(form))...)
			must.Eq(t, exitFailure, code)
			must.Eq(t, "", stderr)
			must.StrContains(t, stdout, source)
		}
	}
}

func TestAgent_ErrorsNameTheOption(t *testing.T) {
	n := newNode(t, nvmltest.New(nvmltest.H200(0)))
	for _, c := range []struct{ option, value, want string }{
		{"--listen", "0.0.0.0:9760", "--listen: "},
		{"--listen", "unix:/no/such/directory/agent", "--listen: "},
		{"--web-config", "/no/such/file", "--web-config: "},
		{"--slice-memory", "much", "--slice-memory: "},
		{"--log-level", "loud", `--log-level must be trace, debug, info, warn or error, got "loud"`},
		{"--nomad-ui", "nomad", `--nomad-ui: "nomad" is no address of Nomad`},
		{"--nomad-ui", "https://me:secret@nomad", "--nomad-ui: the address has a user name or password, which every page would show"},
		{"--host", "http://gpu-7", "--host: "},
		{"--state-dir", "relative", "has to be an absolute path"},
	} {
		code, _, stderr := n.command("agent", "--listen", "127.0.0.1:0", c.option, c.value)
		must.Eq(t, exitFailure, code, must.Sprint(c))
		must.StrContains(t, stderr, c.want)
	}
}
