package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestDocker_OnlyInASandbox(t *testing.T) {
	t.Setenv("TRANCHE_SANDBOX", "")
	dir := filepath.Join(t.TempDir(), "docker")
	_, err := StartDocker(context.Background(), dir, "/run/containerd/containerd.sock")
	must.ErrorContains(t, err, "only started in a sandbox")
	_, err = os.Stat(dir)
	must.ErrorIs(t, err, os.ErrNotExist)
}

func TestFindDocker(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	must.ErrorContains(t, FindDocker(), "dockerd")
	must.NoError(t, os.WriteFile(filepath.Join(dir, "dockerd"), []byte("#!/bin/sh\n"), 0o755))
	must.ErrorContains(t, FindDocker(), `"docker"`)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\n"), 0o755))
	must.NoError(t, FindDocker())
}
