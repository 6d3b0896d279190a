package wrapper

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

const execToken = "00112233445566778899aabbccddeeff"

// execution is a process for exec as an engine writes it, with what our version of the types does not know.
const execution = `{"terminal": true, "user": {"uid": 1, "gid": 5}, "args": ["env"], "cwd": "/", "future": {"n": 18446744073709551615},
	"env": ["A=1", "TRANCHE_CLAIM_0123abcd=` + execToken + `", "TRANCHE_GPU_MEMORY=8GiB", "NVIDIA_VISIBLE_DEVICES=all", "B=\u003c2\u003e"]}`

// editedExecution is that for a container of ours.
const editedExecution = `{"terminal": true, "user": {"uid": 1, "gid": 5}, "args": ["env"], "cwd": "/", "future": {"n": 18446744073709551615},
	"env": ["A=1", "B=<2>", "NVIDIA_VISIBLE_DEVICES=void"]}`

// execNode is a node with a container that holds a claim, called ours.
func execNode(t *testing.T) runtime.Config {
	t.Helper()
	cfg := NodeConfig(t)
	ledger, err := claim.Open(claim.Options{StateDir: cfg.StateDir, RunDir: cfg.RunDir})
	must.NoError(t, err)
	made, _, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: runtimetest.GPU0}, Slices: []string{runtimetest.GPU0 + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	_, err = ledger.PrepareRegion(t.Context(), made.ID, "ours", 0)
	must.NoError(t, err)
	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "runc", ID: "ours", InitPID: os.Getpid()}))
	return cfg
}

// processIn writes a file such as the engines do.
func processIn(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runc-process1")
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestEditProcess(t *testing.T) {
	cfg := execNode(t)
	const (
		token    = `{"env": ["TRANCHE_CLAIM_0123abcd=` + execToken + `"]}`
		asks     = `{"env": ["TRANCHE_GPU_MEMORY=8GiB", "NVIDIA_VISIBLE_DEVICES=all"], "env2": 1}`
		answered = `{"env": ["NVIDIA_VISIBLE_DEVICES=void"]}`
	)
	for _, tc := range []struct{ name, container, process, want string }{
		{"all of it", "ours", execution, editedExecution},
		{"what it asked for", "ours", asks, `{"env": ["NVIDIA_VISIBLE_DEVICES=void"], "env2": 1}`},
		{"no environment", "ours", `{}`, answered},
		{"a token in a container that the ledger does not know", "theirs", token, answered},
		{"a container that is not ours", "theirs", asks, asks},
		{"a container that is not ours, said twice", "theirs", `{"cwd": "/", "cwd": "/x"}`, `{"cwd": "/", "cwd": "/x"}`},
		{"no JSON for a container that is not ours", "theirs", "{", "{"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := processIn(t, tc.process)
			must.NoError(t, editProcess(cfg, invocation{subcommand: "exec", id: tc.container, process: path}))
			content, err := os.ReadFile(path)
			must.NoError(t, err)
			if tc.process == tc.want {
				must.Eq(t, tc.want, string(content))
				return
			}
			want, err := decode([]byte(tc.want))
			must.NoError(t, err)
			got, err := decode(content)
			must.NoError(t, err)
			must.Eq(t, want, got)
		})
	}
	t.Run("no file", func(t *testing.T) {
		must.NoError(t, editProcess(cfg, invocation{subcommand: "exec", id: "ours", process: "/no/such"}))
	})
	t.Run("a pipe for a container that is not ours", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "pipe")
		must.NoError(t, syscall.Mkfifo(path, 0o600))
		must.NoError(t, editProcess(cfg, invocation{subcommand: "exec", id: "theirs", process: path}))
	})
}

// The engine removes the file by its name, and may read it as another user than root.
func TestEditProcess_ModeOwnerAndNothingLeft(t *testing.T) {
	cfg := execNode(t)
	path := processIn(t, execution)
	must.NoError(t, os.Chmod(path, 0o640))
	if os.Getuid() == 0 {
		must.NoError(t, os.Chown(path, 1234, 5678))
	}
	before, err := os.Stat(path)
	must.NoError(t, err)
	must.NoError(t, editProcess(cfg, invocation{id: "ours", process: path}))
	after, err := os.Stat(path)
	must.NoError(t, err)
	must.False(t, os.SameFile(before, after))
	must.Eq(t, before.Mode(), after.Mode())
	must.Eq(t, before.Sys().(*syscall.Stat_t).Uid, after.Sys().(*syscall.Stat_t).Uid)
	must.Eq(t, before.Sys().(*syscall.Stat_t).Gid, after.Sys().(*syscall.Stat_t).Gid)
	left, err := os.ReadDir(filepath.Dir(path))
	must.NoError(t, err)
	must.Len(t, 1, left)
}

func TestEditProcess_Refused(t *testing.T) {
	cfg := execNode(t)
	for _, tc := range []struct {
		name, want string
		write      func(path string) error
	}{
		{"said twice", `"env" is there twice`, func(path string) error {
			return os.WriteFile(path, []byte(`{"env": ["TRANCHE_CLAIM_0123abcd=`+execToken+`"], "env": []}`), 0o600)
		}},
		{"no process", "no OCI process", func(path string) error {
			return os.WriteFile(path, []byte(`{"env": "TRANCHE_CLAIM_0123abcd=`+execToken+`"}`), 0o600)
		}},
		{"a pipe", "no regular file", func(path string) error { return syscall.Mkfifo(path, 0o600) }},
		{"too large", "larger than 16 MiB", func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, bundle.MaxSpecBytes+1))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "runc-process1")
			must.NoError(t, tc.write(path))
			err := editProcess(cfg, invocation{id: "ours", process: path})
			must.ErrorContains(t, err, tc.want)
			must.ErrorContains(t, err, path)
			must.StrNotContains(t, err.Error(), execToken)
		})
	}
}

// A ledger that nobody can read keeps no process from a container, unless that would see a token, and says so.
func TestEditProcess_WithoutLedger(t *testing.T) {
	cfg := execNode(t)
	cfg.StateDir = filepath.Join(t.TempDir(), "state")
	runtimetest.WriteFile(t, filepath.Join(cfg.StateDir, "claims"), "no directory")
	log := filepath.Join(t.TempDir(), "log")
	const asks = `{"env": ["NVIDIA_VISIBLE_DEVICES=all"]}`
	path := processIn(t, asks)
	must.NoError(t, editProcess(cfg, invocation{id: "ours", process: path, log: log}))
	content, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, asks, string(content))
	said, err := os.ReadFile(log)
	must.NoError(t, err)
	must.StrContains(t, string(said), "level=warning")
	must.StrContains(t, string(said), cfg.StateDir)

	path = processIn(t, execution)
	must.NoError(t, editProcess(cfg, invocation{id: "ours", process: path, log: log}))
	content, err = os.ReadFile(path)
	must.NoError(t, err)
	must.StrNotContains(t, string(content), execToken)
}
