// Package credentialtest has what tests of registry credentials share.
package credentialtest

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// Helper puts a credential helper on PATH.
func Helper(t *testing.T, suffix, script string) {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker-credential-"+suffix), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// DockerConfig writes a config.json, and returns its path.
func DockerConfig(t *testing.T, format string, args ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.json")
	must.NoError(t, os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600))
	return file
}

// BasicAuth returns a user name and a password as a config.json has them.
func BasicAuth(username, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(username + ":" + password))
}
