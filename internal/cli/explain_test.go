package cli

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

func TestExplain_Errors(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/job/secret" {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		http.NotFound(w, r)
	}))
	t.Setenv("NOMAD_ADDR", server.URL)
	a, _ := configured(t, nvmltest.New())
	directory := t.TempDir()
	for _, c := range []struct {
		says string
		args []string
	}{
		{`there is no file and no job "nothing"`, []string{"nothing"}},
		{"set NOMAD_TOKEN to a token", []string{"secret"}},
		{`--var "x": it has to be NAME=VALUE`, []string{"--var", "x", "nothing"}},
		{"--var-file: open /nowhere", []string{"--var-file", "/nowhere", "nothing"}},
		{"--var and --var-file are for a jobspec, and there is no file secret", []string{"--var", "x=1", "secret"}},
		{"read the jobspec: open /missing.hcl: no such file", []string{"/missing.hcl"}},
		{"read the jobspec: open train.nomad: no such file", []string{"train.nomad"}},
		{"read the jobspec: read " + directory + "/: is a directory", []string{directory + "/"}},
	} {
		code, _, stderr := execute(a, append([]string{"explain"}, c.args...)...)
		must.Eq(t, exitFailure, code)
		must.StrContains(t, stderr, c.says)
	}
	server.Close()
	_, _, stderr := execute(a, "explain", "nothing")
	must.StrContains(t, stderr, "set NOMAD_ADDR")
}

func TestExplain_Variables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.vars")
	must.NoError(t, os.WriteFile(file, []byte("image = \"a\""), 0o644))
	text, err := explainOptions{varFile: file, variables: []string{"count=3", "tag=b:\"${x}\"", "version=1.10", "on=true", "list=[1]"}}.variableFile()
	must.NoError(t, err)
	must.Eq(t, `image = "a"
count = "3"
tag = "b:\"$${x}\""
version = "1.10"
on = "true"
list = [1]
`, text)
}
