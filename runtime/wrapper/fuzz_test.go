package wrapper

// This file needs no other test's: scripts/fuzz-go builds it without them, which takes seconds instead of minutes.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

// fuzzedEdits are those of the changes to a spec that do not depend on the node's files.
func fuzzedEdits() edit.Modifiers {
	claims := []edit.Claim{{Claim: &claim.Claim{ID: "aaaaaaaa"}, RegionDir: "/run/tranche/claims/aaaaaaaa"}}
	return edit.Modifiers{
		edit.LinuxContainer{}, edit.ForeignHooks{}, edit.RegionMounts{Claims: claims},
		edit.BindingHooks{Path: "/h", StateDir: "/s", RunDir: "/r", Claims: claims}, edit.Environment{},
	}
}

// FuzzSpec reads a container's spec and edits it. What a runtime in Go reads out of the file afterwards is what the edits
// have made of the spec, no more and no less, and holds no token.
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{
		`{"process":{"env":["A=1"],"new":[1]},"linux":{"namespaces":[{"type":"new","x":1}]},"n":18446744073709551615}`, "", "{}", "[]", "null", `{"process":null,"linux":{}}`, `{"process":{},"linux":{},"process":{}}`,
		`{"PROCESS":{"env":["A=1"]},"linux":{}}`, `{"process":{"env":["TRANCHE_CLAIM_0=1"]},"linux":{},"hook\u017f":{}}`,
		`{"process":{"env":["a\ud800"]},"linux":{},"mounts":[{"destination":"/../.tranche/x"}],"Mounts":[]}`,
		`{"process":{"user":{"uid":0}},"linux":{"resources":{"unified":{"A":"1","a":"2"}}},"annotations":{"B":"","b":""}}`,
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "config.json")
	f.Fuzz(func(t *testing.T, content []byte) {
		must.NoError(t, os.WriteFile(path, content, 0o600))
		file, err := readSpecFile(path)
		if err != nil {
			return
		}
		_ = file.environment()
		if file.modify(fuzzedEdits()) != nil {
			return
		}
		read := &specs.Spec{}
		must.NoError(t, json.Unmarshal(file.Content, read))
		want, err := generic(file.spec)
		must.NoError(t, err)
		got, err := generic(read)
		must.NoError(t, err)
		if !reflect.DeepEqual(want, got) { // must.Eq would print megabytes
			t.Fatalf("of %q the next runtime reads\n%v\ninstead of\n%v", content, got, want)
		}
		for _, entry := range read.Process.Env {
			must.False(t, strings.HasPrefix(entry, claim.EnvPrefix))
		}
	})
}

// FuzzInvocation reads the command line of an OCI runtime; its arguments are separated by zero bytes.
func FuzzInvocation(f *testing.F) {
	for _, seed := range []string{
		"", "create\x00c1", "--root\x00/r\x00--log=/l\x00create\x00-b/b\x00c1", "run\x00--\x00-x", "--\x00create", "-\x00-b\x00=",
		"create\x00--bundle", "--log\x00create\x00run\x00--config=/x\x00c1", "exec\x00create\x00-b\x00x", "exec\x00-tp\x00/p\x00c1\x00-p\x00/q",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		inv := parseInvocation(args)
		// Whatever it understood stands there.
		for _, value := range []string{inv.subcommand, inv.id, inv.bundle, inv.specFile, inv.process, inv.log, inv.logFormat} {
			must.StrContains(t, line, value)
		}
		if inv.creates() {
			must.True(t, strings.HasSuffix(inv.specPath(), ".json") || inv.specFile != "")
		}
	})
}
