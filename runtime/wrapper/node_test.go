package wrapper_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
	"github.com/tranche-gpu/tranche/runtime/wrapper"
)

// node is a node with a ledger, a fake driver root and tranche-runtime, all in a temporary directory.
type node struct {
	t      *testing.T
	dir    string
	cfg    runtime.Config
	ledger *claim.Ledger
	// prefix is put in front of every command of tranche-runtime.
	prefix []string
	// hostMemoryMax is gpu_host_memory_max.
	hostMemoryMax string
	// withoutClaim is without_claim.
	withoutClaim string
	// next is the runtime that it becomes.
	next string
	// front is the program that is called instead of tranche-runtime; empty for tranche-runtime itself.
	front string
}

func newNode(t *testing.T, next string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), cfg: wrapper.NodeConfig(t)}
	self, err := os.Executable()
	must.NoError(t, err)
	must.NoError(t, os.Remove(n.cfg.HookPath))
	must.NoError(t, os.Symlink(self, n.cfg.HookPath))
	must.NoError(t, os.Symlink(self, n.path("tranche-runtime")))
	must.NoError(t, os.MkdirAll(n.path("cli"), 0o755))
	must.NoError(t, os.Symlink(self, n.path("cli/tranche")))
	n.cfg.CLIPath = n.path("cli/tranche")
	n.ledger, err = claim.Open(claim.Options{StateDir: n.cfg.StateDir, RunDir: n.cfg.RunDir})
	must.NoError(t, err)
	n.configure(next)
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// configure writes the configuration file of tranche-runtime.
func (n *node) configure(next string) {
	n.t.Helper()
	n.next = next
	if n.withoutClaim == "" {
		n.withoutClaim = runtime.WithoutClaimDeny
	}
	content, err := toml.Marshal(map[string]any{
		"without_claim": n.withoutClaim,
		"driver_root":   n.cfg.DriverRoot, "shadow_dir": n.cfg.ShadowDir, "hook_path": n.cfg.HookPath,
		"cli_path": n.cfg.CLIPath, "state_dir": n.cfg.StateDir, "run_dir": n.cfg.RunDir, "runtime": next, "gpu_host_memory_max": n.hostMemoryMax,
	})
	must.NoError(n.t, err)
	runtimetest.WriteFile(n.t, n.path("config.toml"), string(content))
}

// reserve makes a claim on a GPU and returns it with the environment entry that names it.
func (n *node) reserve(uuid, slice string) (*claim.Claim, string) {
	n.t.Helper()
	made, token, err := n.ledger.Reserve(n.t.Context(), claim.Request{
		GPU:        claim.GPU{UUID: uuid, Name: "NVIDIA H200"},
		Slices:     []string{uuid + "/" + slice},
		LimitBytes: 1 << 30,
		Owner:      claim.OwnerNomad,
	})
	must.NoError(n.t, err)
	return made, token.EnvName() + "=" + token.Reveal()
}

// holder is the container that a claim is bound to, or nil where that was released or there never was one.
func (n *node) holder(id string) *claim.Container {
	n.t.Helper()
	claims, _, err := n.ledger.List(n.t.Context())
	must.NoError(n.t, err)
	for _, c := range claims {
		if c.ID == id && c.Released.IsZero() {
			return c.Container
		}
	}
	return nil
}

// bundle makes a bundle whose container runs a busybox script in an environment.
func (n *node) bundle(name, script string, env ...string) string {
	n.t.Helper()
	dir := n.path(name)
	spec := map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]any{"uid": 0, "gid": 0}, "cwd": "/",
			"args": []string{"/bin/busybox", "sh", "-c", script},
			"env":  append([]string{"PATH=/bin", "HOME=/"}, env...),
			"capabilities": map[string]any{
				"bounding":  []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD"},
				"effective": []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD"},
				"permitted": []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_MKNOD"},
			},
		},
		"root": map[string]any{"path": "rootfs"},
		"mounts": []any{
			map[string]any{"destination": "/proc", "type": "proc", "source": "proc"},
			map[string]any{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
		},
		"linux": map[string]any{
			"namespaces": []any{
				map[string]any{"type": "pid"}, map[string]any{"type": "mount"}, map[string]any{"type": "network"},
				map[string]any{"type": "ipc"}, map[string]any{"type": "uts"},
			},
			"resources": map[string]any{"devices": []any{map[string]any{"allow": false, "access": "rwm"}}},
		},
		"annotations": map[string]any{"test": "yes"},
		"future":      map[string]any{"kept": true},
	}
	content, err := json.MarshalIndent(spec, "", "\t")
	must.NoError(n.t, err)
	runtimetest.WriteFile(n.t, filepath.Join(dir, "config.json"), string(content))
	for _, directory := range []string{"rootfs/bin", "rootfs/etc"} {
		must.NoError(n.t, os.MkdirAll(filepath.Join(dir, directory), 0o755))
	}
	return dir
}

// runtime is a command of tranche-runtime.
func (n *node) runtime(args ...string) *exec.Cmd {
	argv := append(append([]string{}, n.prefix...), cmp.Or(n.front, n.path("tranche-runtime")))
	argv = append(argv, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "TRANCHE_CONFIG="+n.path("config.toml"))
	// Not /dev/null: older crun gives its stdin to the container's user, and this would be the host's.
	cmd.Stdin = strings.NewReader("")
	return cmd
}

// fails runs a command that must fail and returns what it wrote to its standard error. A container that was not to start
// may run forever, and hold the standard error open.
func (n *node) fails(cmd *exec.Cmd) string {
	n.t.Helper()
	var stderr strings.Builder
	cmd.Stderr, cmd.WaitDelay = &stderr, time.Second
	must.NoError(n.t, cmd.Start())
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	must.True(n.t, late.Stop(), must.Sprintf("%v did not end: %s", cmd.Args, &stderr))
	must.Error(n.t, err, must.Sprintf("%v did not fail", cmd.Args))
	return stderr.String()
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	must.NoError(t, err)
	return string(content)
}

// idOf is the ID of the claim that a token would name.
func idOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:4])
}
