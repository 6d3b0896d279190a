package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
)

// node is a ledger in a temporary directory and the hook that works on it.
type node struct {
	t                *testing.T
	stateDir, runDir string
	bundle           string
	ledger           *claim.Ledger
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, stateDir: filepath.Join(t.TempDir(), "state"), runDir: filepath.Join(t.TempDir(), "run")}
	n.bundle = newBundle(t)
	var err error
	n.ledger, err = claim.Open(claim.Options{StateDir: n.stateDir, RunDir: n.runDir})
	must.NoError(t, err)
	return n
}

func (n *node) reserve(slice string) string {
	n.t.Helper()
	uuid := "GPU-11111111-1111-1111-1111-111111111111"
	made, _, err := n.ledger.Reserve(n.t.Context(), claim.Request{
		GPU: claim.GPU{UUID: uuid}, Slices: []string{uuid + "/" + slice}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(n.t, err)
	return made.ID
}

func (n *node) claim(id string) *claim.Claim {
	n.t.Helper()
	claims, _, err := n.ledger.List(n.t.Context())
	must.NoError(n.t, err)
	for _, c := range claims {
		if c.ID == id {
			return c
		}
	}
	n.t.Fatalf("claim %s is gone", id)
	return nil
}

// bound is the ID of the container that holds a claim, "" for none.
func (n *node) bound(id string) string {
	n.t.Helper()
	if c := n.claim(id); c.Container != nil && c.Released.IsZero() {
		return c.Container.ID
	}
	return ""
}

// hook runs a role for a container and returns the exit status and what went to standard error.
func (n *node) hook(role, container string, pid int, ids ...string) (int, string) {
	n.t.Helper()
	state, err := json.Marshal(specs.State{Version: "1.0.2", ID: container, Status: "creating", Pid: pid, Bundle: n.bundle})
	must.NoError(n.t, err)
	return n.hookWith(string(state), n.args(role, ids...)...)
}

// lock holds the ledger's lock until the test ends, as a process does that was stopped in the midst of a change.
func (n *node) lock() {
	n.t.Helper()
	f, err := os.Open(filepath.Join(n.stateDir, "claims", ".lock"))
	must.NoError(n.t, err)
	n.t.Cleanup(func() { _ = f.Close() })
	must.NoError(n.t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
}

// A hook that waits for the ledger's lock in vain says so before its runtime kills it, however many claims it has.
func TestHooks_LedgerLocked(t *testing.T) {
	n := newNode(t)
	first, second := n.reserve("slice-000"), n.reserve("slice-001")
	n.lock()
	for _, role := range []string{"prestart", "poststop"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		state, err := json.Marshal(specs.State{Version: "1.0.2", ID: "c1", Pid: os.Getpid(), Bundle: n.bundle})
		must.NoError(t, err)
		err = run(ctx, n.args(role, first, second), bytes.NewReader(state))
		must.ErrorIs(t, err, context.DeadlineExceeded, must.Sprint(role))
		must.ErrorContains(t, err, fmt.Sprintf("which process %d (", os.Getpid()))
	}
}

func (n *node) args(role string, ids ...string) []string {
	args := []string{role, "--state-dir", n.stateDir, "--run-dir", n.runDir}
	for _, id := range ids {
		args = append(args, "--claim", id)
	}
	return args
}

func (n *node) hookWith(stdin string, args ...string) (int, string) {
	var stderr strings.Builder
	status := Main(append([]string{"tranche-hook"}, args...), strings.NewReader(stdin), &stderr)
	return status, stderr.String()
}

// initProcess starts a process to stand for a container's init.
func initProcess(t *testing.T) *exec.Cmd {
	t.Helper()
	process := exec.Command("sleep", "1000")
	must.NoError(t, process.Start())
	t.Cleanup(func() { end(process) })
	return process
}

func end(process *exec.Cmd) {
	_ = process.Process.Kill()
	_ = process.Wait()
}

func TestPrestartAndPoststop(t *testing.T) {
	n := newNode(t)
	first, second := n.reserve("slice-000"), n.reserve("slice-001")
	process := initProcess(t)

	status, stderr := n.hook("prestart", "c1", process.Process.Pid, first, second)
	must.Zero(t, status, must.Sprint(stderr))
	must.Eq(t, "", stderr)
	for _, id := range []string{first, second} {
		container := n.claim(id).Container
		must.Eq(t, "c1", container.ID)
		must.Eq(t, process.Process.Pid, container.InitPID)
		must.NotEq(t, "", container.Runtime)
		must.True(t, claim.Alive(*container))
	}

	end(process)
	must.False(t, claim.Alive(*n.claim(first).Container), must.Sprint("the start time is not that of the process"))
	status, stderr = n.hook("poststop", "c1", 0, first, second)
	must.Zero(t, status, must.Sprint(stderr))
	must.Eq(t, "", n.bound(first))
	must.Eq(t, "", n.bound(second))

	// The same claims again, as when a task restarts in place.
	status, stderr = n.hook("prestart", "c2", initProcess(t).Process.Pid, first, second)
	must.Zero(t, status, must.Sprint(stderr))
	must.Eq(t, "c2", n.bound(first))
}

func TestPrestart_AllOrNone(t *testing.T) {
	n := newNode(t)
	free, taken, after := n.reserve("slice-000"), n.reserve("slice-001"), n.reserve("slice-002")
	owner := initProcess(t)
	status, stderr := n.hook("prestart", "owner", owner.Process.Pid, taken)
	must.Zero(t, status, must.Sprint(stderr))

	thief := initProcess(t)
	status, stderr = n.hook("prestart", "thief", thief.Process.Pid, free, taken, after)
	must.Eq(t, 1, status)
	must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprintf("not one line: %q", stderr))
	must.StrHasSuffix(t, "\n", stderr)
	for _, want := range []string{taken, "thief", "owner"} {
		must.StrContains(t, stderr, want)
	}
	must.Eq(t, "", n.bound(free))
	must.Eq(t, "owner", n.bound(taken))
	must.Eq(t, "", n.bound(after))

	end(owner)
	end(thief) // as a runtime does whose hook has failed
	status, stderr = n.hook("prestart", "thief", initProcess(t).Process.Pid, free, taken, after)
	must.Zero(t, status, must.Sprint(stderr))
	must.Eq(t, "thief", n.bound(taken))
}

func TestPrestart_Refuses(t *testing.T) {
	n := newNode(t)
	id := n.reserve("slice-000")
	gone := initProcess(t)
	end(gone)
	cases := []struct {
		name string
		pid  int
		ids  []string
		want string
	}{
		{"no process", 0, []string{id}, "names no process"},
		{"a negative process", -1, []string{id}, "names no process"},
		{"a process that has ended", gone.Process.Pid, []string{id}, "init process"},
		{"a claim that never was", os.Getpid(), []string{"00000000"}, "00000000"},
		{"an ID that leads elsewhere", os.Getpid(), []string{"../../etc"}, "../../etc"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			status, stderr := n.hook("prestart", "c1", tc.pid, tc.ids...)
			must.Eq(t, 1, status)
			must.StrContains(t, stderr, tc.want)
			must.Eq(t, "", n.bound(id))
		})
	}
}

func TestPoststop_Quiet(t *testing.T) {
	n := newNode(t)
	id := n.reserve("slice-000")
	owner := initProcess(t)
	status, stderr := n.hook("prestart", "owner", owner.Process.Pid, id)
	must.Zero(t, status, must.Sprint(stderr))

	for name, ids := range map[string][]string{
		"another container's claim": {id},
		"a claim that is gone":      {"00000000"},
		"both":                      {"00000000", id},
	} {
		t.Run(name, func(t *testing.T) {
			status, stderr := n.hook("poststop", "c0", 0, ids...)
			must.Zero(t, status)
			must.Eq(t, "", stderr)
			must.Eq(t, "owner", n.bound(id))
		})
	}
	t.Run("no ledger", func(t *testing.T) {
		status, stderr := newNode(t).hook("poststop", "c0", 0, id)
		must.Zero(t, status)
		must.Eq(t, "", stderr)
	})
	t.Run("a claim that is gone does not keep the others", func(t *testing.T) {
		end(owner)
		status, stderr := n.hook("poststop", "owner", 0, "00000000", id)
		must.Zero(t, status, must.Sprint(stderr))
		must.Eq(t, "", n.bound(id))
	})
}

func TestErrorIsOneLine(t *testing.T) {
	n := newNode(t)
	must.NoError(t, os.MkdirAll(n.stateDir, 0o700))
	must.NoError(t, os.WriteFile(filepath.Join(n.stateDir, "claims"), nil, 0o600)) // not a directory
	status, stderr := n.hook("poststop", "c1", 0, "00000000", "11111111")
	must.Eq(t, 1, status)
	must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprintf("not one line: %q", stderr))
	must.Eq(t, 2, strings.Count(stderr, "opening the ledger: "), must.Sprintf("not an error for each claim: %q", stderr))
}

func TestState(t *testing.T) {
	n := newNode(t)
	args := n.args("prestart", n.reserve("slice-000"))
	cases := []struct{ name, stdin, want string }{
		{"empty", "", "standard input"},
		{"not JSON", "id: c1", "standard input"},
		{"no ID", `{"pid": 1}`, "no container ID"},
		{"an ID with a line break", `{"id": "c1\nlevel=info", "pid": 1}`, "is no container ID"},
		{"an ID that is a path", `{"id": "../c1", "pid": 1}`, "is no container ID"},
		{"a long ID", `{"id": "` + strings.Repeat("a", 2000) + `", "pid": 1}`, "longer than 1024 bytes"},
		{"a pid that is no number", `{"id": "c1", "pid": "self"}`, "standard input"},
		{"too large", `{"id": "c1", "pid": 1, "bundle": "` + strings.Repeat("a", maxStateBytes) + `"}`, "larger than 4 MiB"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			status, stderr := n.hookWith(tc.stdin, args...)
			must.Eq(t, 1, status)
			must.StrContains(t, stderr, tc.want)
			must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprintf("not one line: %q", stderr))
		})
	}
}

func TestCommandLine(t *testing.T) {
	cases := []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "usage"},
		{"unknown role", []string{"createContainer"}, "createContainer"},
		{"neither a shadow nor none", []string{"createContainer", "--state-dir", "/s", "--run-dir", "/r", "--claim", "0"}, "exactly one of --shadow-dir and"},
		{
			"a shadow and none",
			[]string{"createContainer", "--state-dir", "/s", "--run-dir", "/r", "--claim", "0", "--shadow-dir", "/d", "--unlimited"},
			"exactly one of --shadow-dir and",
		},
		{"no claim", []string{"prestart", "--state-dir", "/s", "--run-dir", "/r"}, "--claim is required"},
		{"no state directory", []string{"prestart", "--run-dir", "/r", "--claim", "00000000"}, "--state-dir"},
		{"relative directory", []string{"poststop", "--state-dir", "s", "--run-dir", "/r", "--claim", "0"}, "absolute"},
		{"unknown flag", []string{"poststop", "--token", "x"}, "token"},
		{"argument", []string{"poststop", "--state-dir", "/s", "--run-dir", "/r", "--claim", "00000000", "x"}, `"x"`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			status, stderr := newNode(t).hookWith(`{"id": "c1", "pid": 1}`, tc.args...)
			must.Eq(t, 1, status)
			must.StrContains(t, stderr, tc.want)
		})
	}
}

// Where no governor runs, the command tranche sets the limits; without them the container does not start.
func TestPrestart_DriverLimits(t *testing.T) {
	for name, want := range map[string]int{"true": 0, "false": 1} {
		n := newNode(t)
		id := n.reserve("slice-000")
		said := filepath.Join(t.TempDir(), "said")
		cli := filepath.Join(t.TempDir(), "tranche")
		must.NoError(t, os.WriteFile(cli, []byte("#!/bin/sh\necho \"$@\" > "+said+"\necho no limit here >&2\n/bin/"+name+"\n"), 0o755))
		status, stderr := n.hookWith(fmt.Sprintf(`{"id": "c1", "pid": %d, "bundle": %q}`, os.Getpid(), n.bundle),
			append(n.args("prestart", id), "--driver-limits-by", cli, "--driver-root", "/driver")...)
		must.Eq(t, want, status, must.Sprint(stderr))
		content, err := os.ReadFile(said)
		must.NoError(t, err)
		must.Eq(t, fmt.Sprintf("driver-limits --driver-root /driver --state-dir %s --run-dir %s --pid %d --claim %s\n", n.stateDir,
			n.runDir, os.Getpid(), id), string(content))
		if want == 0 {
			must.Eq(t, "c1", n.bound(id))
			continue
		}
		must.Eq(t, "", n.bound(id), must.Sprint("a container without its limit has the claim"))
		must.StrContains(t, stderr, "limit the GPU memory of container c1: "+cli+" driver-limits: no limit here")
	}
}
