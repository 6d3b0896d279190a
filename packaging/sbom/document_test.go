package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/shoenig/test/must"
)

// All modules that a program was built from are in the document, once, and whatever a relationship names is there.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	programs := []string{filepath.Join(dir, "tranche-hook"), filepath.Join(dir, "tranche-runtime")}
	for _, program := range programs {
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "../../cmd/"+filepath.Base(program))
		out, err := build.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
	}
	built, err := buildinfo.ReadFile(programs[0])
	must.NoError(t, err)
	must.SliceNotEmpty(t, built.Deps)

	out, again := new(bytes.Buffer), new(bytes.Buffer)
	must.NoError(t, write(out, "v1.2.3", "1700000000", programs))
	must.NoError(t, write(again, "v1.2.3", "1700000000", programs))
	must.Eq(t, out.String(), again.String())

	var d document
	must.NoError(t, json.Unmarshal(out.Bytes(), &d))
	must.Eq(t, "2023-11-14T22:13:20Z", d.Creation.Created)
	valid := regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`)
	named := map[string]int{}
	known := map[string]bool{documentID: true}
	for _, p := range d.Packages {
		must.RegexMatch(t, valid, p.ID)
		known[p.ID] = true
		named[p.Name+" "+p.Version]++
	}
	for _, module := range built.Deps {
		must.Eq(t, 1, named[module.Path+" "+module.Version], must.Sprint(module.Path))
	}
	for _, r := range d.Relationships {
		must.True(t, known[r.Element] && known[r.Related], must.Sprintf("%+v", r))
	}
}

// Programs with a part of Nomad say so.
func TestWrite_NomadsLicense(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nomad-device-tranche")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "../../cmd/nomad-device-tranche").
		CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	document := new(bytes.Buffer)
	must.NoError(t, write(document, "v1.2.3", "0", []string{program}))
	must.RegexMatch(t, regexp.MustCompile(`"name": "github.com/hashicorp/nomad",[^}]*"licenseDeclared": "BUSL-1.1 AND MPL-2.0"`), document.String())
}

func TestWrite_OfNoProgram(t *testing.T) {
	must.ErrorContains(t, write(new(bytes.Buffer), "v1.2.3", "0", []string{"/etc/passwd"}), "/etc/passwd")
	must.ErrorContains(t, write(new(bytes.Buffer), "v1.2.3", "yesterday", nil), "SOURCE_DATE_EPOCH")
}
