package spec

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestWithInit(t *testing.T) {
	args := func(s *Spec) error { s.Process.Args = []string{"/app", "-x"}; return nil }
	s := apply(t, specOption(args), withInit("/usr/bin/tini-static"))
	must.Eq(t, []string{initInContainer, "--", "/app", "-x"}, s.Process.Args)
	must.Eq(t, []specs.Mount{{Type: "bind", Source: "/usr/bin/tini-static", Destination: initInContainer,
		Options: []string{"rbind", "rprivate", "ro"}}}, s.Mounts)
	s = apply(t, specOption(args), withInit(""))
	must.Eq(t, []string{"/app", "-x"}, s.Process.Args)
	must.SliceEmpty(t, s.Mounts)
}

func TestInitProgram(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	must.NoError(t, err)
	dir := t.TempDir()
	must.NoError(t, os.Symlink("/bin/sh", filepath.Join(dir, "tini"))) // linked against shared libraries
	must.NoError(t, os.WriteFile(filepath.Join(dir, "docker-init"), []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", dir)
	dirs := initDirs
	t.Cleanup(func() { initDirs = dirs })
	initDirs = []string{filepath.Join(dir, "none")}
	task := &TaskConfig{Init: true}

	_, err = task.InitProgram(&Config{})
	for _, want := range []string{"option init = true", "tini-static, docker-init, catatonit, tini", "init_path",
		"docker-init is not a program", "tini is linked against shared libraries"} {
		must.ErrorContains(t, err, want)
	}

	must.NoError(t, os.Symlink(busybox, filepath.Join(dir, "catatonit")))
	found, err := task.InitProgram(&Config{})
	must.NoError(t, err)
	must.Eq(t, filepath.Join(dir, "catatonit"), found)

	found, err = task.InitProgram(&Config{InitPath: busybox})
	must.NoError(t, err)
	must.Eq(t, busybox, found)
	found, err = (&TaskConfig{}).InitProgram(&Config{InitPath: busybox})
	must.NoError(t, err)
	must.Eq(t, "", found)
}
