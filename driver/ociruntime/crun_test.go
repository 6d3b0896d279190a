package ociruntime

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestIsOldCrun(t *testing.T) {
	for output, want := range map[string]bool{
		"crun version 1.8.1\ncommit: f8a09\n":              true,
		"crun version 0.21\n":                              true,
		"crun version 1.23.1\n":                            true,
		"crun version 1.24\n":                              false,
		"crun version 1.25.0.0.0.7-1f2a\n":                 false,
		"crun version 2.0\n":                               false,
		"runc version 1.1.5\ncommit: v1.1\n":               false,
		"wrapper of\ncrun version 1.8.1\n":                 false,
		"crun version 99999999999999999999.99999999999999": false,
		"": false,
	} {
		must.Eq(t, want, isOldCrun(output), must.Sprint(output))
	}
}

// fakeRuntime is a program that prints a version, and logs each call.
func fakeRuntime(t *testing.T, file, version string) {
	t.Helper()
	must.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\necho asked >>"+file+".log; echo '"+version+"'\n"), 0o755))
}

func TestVersions_CheckUserns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "some-crun")
	var versions Versions
	given := Runtime{Name: "crun", Shim: Runc, Program: file}

	fakeRuntime(t, file, "crun version 1.24.1")
	must.NoError(t, versions.CheckUserns(t.Context(), given))
	must.NoError(t, versions.CheckUserns(t.Context(), given))
	calls, err := os.ReadFile(file + ".log")
	must.NoError(t, err)
	must.Eq(t, "asked\n", string(calls), must.Sprint("a version is looked up once"))

	fakeRuntime(t, file, "crun version 1.8.1, another file")
	err = versions.CheckUserns(t.Context(), given)
	for _, want := range []string{`option userns_mode = "auto"`, file, "a crun before 1.24", `or set runtime = "runc"`} {
		must.ErrorContains(t, err, want)
	}
	must.NoError(t, versions.CheckUserns(t.Context(), Runtime{Name: "runc", Shim: Runc}))
	must.NoError(t, os.Remove(file))
	must.ErrorContains(t, versions.CheckUserns(t.Context(), given), file)
}
