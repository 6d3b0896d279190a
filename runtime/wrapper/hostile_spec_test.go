package wrapper_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

// respec changes the spec in a bundle.
func (n *node) respec(bundle string, change func(spec map[string]any)) {
	n.t.Helper()
	file := filepath.Join(bundle, "config.json")
	var spec map[string]any
	must.NoError(n.t, json.Unmarshal([]byte(readFile(n.t, file)), &spec))
	change(spec)
	content, err := json.Marshal(spec)
	must.NoError(n.t, err)
	must.NoError(n.t, os.WriteFile(file, content, 0o644))
}

// forgedTokens are environment entries with tokens that nobody gave out.
func forgedTokens(count int) []string {
	var entries []string
	for i := range count {
		token := fmt.Sprintf("%032x", i+1)
		entries = append(entries, "TRANCHE_CLAIM_"+idOf(token)+"="+token)
	}
	return entries
}

// Specs that are refused: with one line that any terminal can show, before the next runtime hears of them, and as they
// were. Each is that of a container with a genuine claim, so that nothing is refused for the want of one.
func TestHostileSpec_Refused(t *testing.T) {
	raw := func(text string) func(*node, string, string) {
		return func(n *node, config, env string) {
			runtimetest.WriteFile(n.t, config, strings.ReplaceAll(text, "@ENV@", `"`+env+`"`))
		}
	}
	instead := func(make func(config string) error) func(*node, string, string) {
		return func(n *node, config, _ string) {
			must.NoError(n.t, os.Remove(config))
			must.NoError(n.t, make(config))
		}
	}
	changed := func(change func(spec map[string]any)) func(*node, string, string) {
		return func(n *node, config, _ string) { n.respec(filepath.Dir(config), change) }
	}
	process := func(spec map[string]any) map[string]any { return spec["process"].(map[string]any) }
	cases := map[string]struct {
		spoil func(n *node, config, env string)
		want  string
	}{
		"empty":             {raw(""), "no OCI spec"},
		"no JSON":           {raw("\x7fELF\x00\x01"), "no OCI spec"},
		"another type":      {raw(`["a"]`), "no OCI spec"},
		"a NUL byte":        {raw("{\"process\": {\"env\": [@ENV@]}}\x00"), "no OCI spec"},
		"two documents":     {raw(`{"process": {"env": [@ENV@]}} {}`), "no OCI spec"},
		"truncated":         {raw(`{"process": {"env": [@ENV@], "args": ["x"`), "no OCI spec"},
		"deep":              {raw(strings.Repeat(`{"a":[`, 100_000) + strings.Repeat(`]}`, 100_000)), "no OCI spec"},
		"env is no list":    {raw(`{"process": {"env": {"a": @ENV@}}}`), "no OCI spec"},
		"number too large":  {raw(`{"process": {"env": [@ENV@], "user": {"uid": 18446744073709551616}}}`), "no OCI spec"},
		"number of no kind": {raw(`{"process": {"env": [@ENV@], "user": {"uid": 1e99}}}`), "no OCI spec"},
		"negative user":     {raw(`{"process": {"env": [@ENV@], "user": {"uid": -1}}}`), "no OCI spec"},
		"no process":        {raw(`{"process": {"env": [@ENV@]}}`), "no linux section"},
		"process twice": {raw(`{"process": {"env": [@ENV@], "args": ["a"]}, "linux": {}, "process": {"args": ["b"]}}`),
			`"process" is there twice`},
		"env twice, and deep": {raw(`{"linux": {}, "process": {"env": [@ENV@], "user": {"uid": 1, "uid": 0}}}`),
			`"uid" is there twice`},
		"a FIFO":          {instead(func(config string) error { return syscall.Mkfifo(config, 0o666) }), "no regular file"},
		"a device":        {instead(func(config string) error { return os.Symlink("/dev/zero", config) }), "no regular file"},
		"a link loop":     {instead(func(config string) error { return os.Symlink("config.json", config) }), "too many levels"},
		"a directory":     {instead(func(config string) error { return os.Mkdir(config, 0o755) }), "no regular file"},
		"larger than any": {func(n *node, config, _ string) { must.NoError(n.t, os.Truncate(config, 17<<20)) }, "larger than 16 MiB"},
		"a thousand claims": {changed(func(spec map[string]any) {
			process(spec)["env"] = append(process(spec)["env"].([]any), anySlice(forgedTokens(1000))...)
		}), "no claim in the ledger"},
		"a claim with a name that writes on terminals": {changed(func(spec map[string]any) {
			process(spec)["env"] = append(process(spec)["env"].([]any), "TRANCHE_CLAIM_\x1b[2J\nforged line=x")
		}), `\x1b[2J; forged line`},
		"a claim with a name of a megabyte": {changed(func(spec map[string]any) {
			process(spec)["env"] = append(process(spec)["env"].([]any), "TRANCHE_CLAIM_"+strings.Repeat("x", 1<<20)+"=y")
		}), "bytes more"},
		"host memory of a megabyte": {changed(func(spec map[string]any) {
			process(spec)["env"] = append(process(spec)["env"].([]any), "TRANCHE_GPU_HOST_MEMORY="+strings.Repeat("9", 1<<20))
		}), "bytes more"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			next := filepath.Join(t.TempDir(), "next")
			runtimetest.WriteFile(t, next, "#!/bin/sh\necho became the next runtime >&2\nexit 1\n")
			n := newNode(t, next)
			_, env := n.reserve(runtimetest.GPU0, "slice-000")
			bundle := n.bundle("b", "true", env)
			config := filepath.Join(bundle, "config.json")
			tc.spoil(n, config, env)
			before, err := os.Lstat(config)
			must.NoError(t, err)

			stderr := n.fails(n.runtime("create", "--bundle", bundle, "c1"))
			must.StrContains(t, stderr, tc.want)
			must.StrNotContains(t, stderr, "became the next runtime")
			must.StrNotContains(t, stderr, "\x1b")
			must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprintf("not one line: %q", stderr))
			must.Less(t, 20_000, len(stderr))
			_, token, _ := strings.Cut(env, "=")
			must.StrNotContains(t, stderr, token)
			after, err := os.Lstat(config)
			must.NoError(t, err)
			must.True(t, os.SameFile(before, after), must.Sprint("it was replaced"))
			left, err := os.ReadDir(bundle)
			must.NoError(t, err)
			must.Len(t, 2, left)
		})
	}
}

func anySlice[T any](values []T) []any {
	var all []any
	for _, value := range values {
		all = append(all, value)
	}
	return all
}

// Specs that are large or odd, and all right. The container gets its claim, and all else as it was. Time is bounded
// here because it was once the square of the environment's length: minutes.
func TestHostileSpec_Edited(t *testing.T) {
	cases := map[string]func(spec map[string]any){
		"annotations of a megabyte": func(spec map[string]any) {
			spec["annotations"] = map[string]any{"a": strings.Repeat("x", 1<<20), strings.Repeat("k", 1<<20): "\x00\x1b"}
		},
		"a token in annotations, arguments and labels": func(spec map[string]any) {
			entry := forgedTokens(1)[0]
			spec["annotations"] = map[string]any{entry: entry, "io.kubernetes.labels": entry}
			spec["process"].(map[string]any)["args"] = []any{"true", entry}
		},
		"environment without names and values": func(spec map[string]any) {
			process := spec["process"].(map[string]any)
			process["env"] = append(process["env"].([]any), "", "=", "==", "\x00", "TRANCHE_CLAIM_00000000", "\ufffd=\ufffd")
		},
		"a long environment": func(spec map[string]any) {
			process := spec["process"].(map[string]any)
			long := make([]any, 500_000)
			for i := range long {
				long[i] = fmt.Sprintf("v=%d", i)
			}
			process["env"] = append(long, process["env"].([]any)...)
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			next, record := recorder(t)
			n := newNode(t, next)
			made, env := n.reserve(runtimetest.GPU0, "slice-000")
			bundle := n.bundle("b", "true", env)
			n.respec(bundle, change)
			before := n.spec(bundle)

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := n.runtime("create", "--bundle", bundle, "c1")
			bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
			bounded.Env = cmd.Env
			_ = bounded.Run()
			must.NoError(t, ctx.Err())
			cmdline, _ := record()
			must.StrContains(t, cmdline, "create")

			after := n.spec(bundle)
			must.Eq(t, before.Annotations, after.Annotations)
			must.Eq(t, before.Process.Args, after.Process.Args)
			var want []string
			for _, entry := range before.Process.Env {
				if !strings.HasPrefix(entry, "TRANCHE_CLAIM_") {
					want = append(want, entry)
				}
			}
			must.Eq(t, append(want, "NVIDIA_VISIBLE_DEVICES=void"), after.Process.Env)
			var claims []string
			for _, mount := range after.Mounts {
				if filepath.Dir(mount.Destination) == shadow.ContainerDir+"/claims" {
					claims = append(claims, filepath.Base(mount.Destination))
				}
			}
			must.Eq(t, []string{made.ID}, claims)
		})
	}
}

func (n *node) spec(bundle string) *specs.Spec {
	n.t.Helper()
	spec := &specs.Spec{}
	must.NoError(n.t, json.Unmarshal([]byte(readFile(n.t, filepath.Join(bundle, "config.json"))), spec))
	return spec
}

// Only the environment is asked for tokens: in annotations, labels and arguments, which anybody can read who may look at
// containers, one leads to nothing.
func TestHostileSpec_TokenElsewhere(t *testing.T) {
	next, record := recorder(t)
	n := newNode(t, next)
	made, env := n.reserve(runtimetest.GPU0, "slice-000")
	bundle := n.bundle("b", "true")
	n.respec(bundle, func(spec map[string]any) {
		name, token, _ := strings.Cut(env, "=")
		spec["annotations"] = map[string]any{name: token, "env": env}
		spec["hostname"] = env
		spec["process"].(map[string]any)["args"] = []any{env}
	})
	before := readFile(t, filepath.Join(bundle, "config.json"))
	_ = n.runtime("create", "--bundle", bundle, "c1").Run()
	cmdline, _ := record()
	must.StrContains(t, cmdline, "create")
	must.Eq(t, before, readFile(t, filepath.Join(bundle, "config.json")))
	must.Nil(t, n.holder(made.ID))
}
