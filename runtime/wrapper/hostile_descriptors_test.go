package wrapper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// CVE-2024-21626: a descriptor of the host's that a container's process inherits is a way out. Of all that tranche-runtime
// opens on its way, the next runtime inherits nothing; what its caller has left open it hands on, as if it weren't there.
func TestHostileDescriptors_NoneOfOursGoOn(t *testing.T) {
	next := filepath.Join(t.TempDir(), "next")
	runtimetest.WriteFile(t, next, "#!/bin/busybox sh\nfor fd in /proc/$$/fd/*; do /bin/busybox readlink $fd; done; exit 0\n")
	n := newNode(t, next)
	_, env := n.reserve(runtimetest.GPU0, "slice-000")
	bundle := n.bundle("b", "true", env)
	callers, err := os.Open(n.path("config.toml"))
	must.NoError(t, err)
	defer callers.Close()
	cmd := n.runtime("create", "--bundle", bundle, "c1")
	cmd.ExtraFiles = []*os.File{callers}
	var own []string
	for target := range strings.Lines(n.must(cmd)) {
		target = strings.TrimSpace(target)
		if strings.HasPrefix(target, "/") && target != "/dev/null" && target != next && target != callers.Name() {
			own = append(own, target)
		}
	}
	must.SliceEmpty(t, own)
	must.Len(t, 1, n.spec(bundle).Hooks.Poststop, must.Sprint("the ledger was not even opened"))
}

// The container's process has its standard descriptors, and what `ls` opens to look, even if the caller has left a
// directory of the host's open.
func TestHostileDescriptors_InTheContainer(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			_, env := n.reserve(runtimetest.GPU0, "slice-000")
			bundle := n.image(n.bundle("b", "busybox ls -1 /proc/self/fd", env))
			host, err := os.Open("/")
			must.NoError(t, err)
			defer host.Close()
			cmd := n.oci("run", "--bundle", bundle, "c1")
			cmd.ExtraFiles = []*os.File{host, host, host, host}
			must.Eq(t, "0\n1\n2\n3\n", n.must(cmd))
		})
	}
}

// Whatever mask the caller has, what we make on the host is for root alone to write; the usage file of a region is for
// the container to write, behind a directory that is for root alone.
func TestHostileDescriptors_NoMask(t *testing.T) {
	next, _ := recorder(t)
	n := newNode(t, next)
	_, env := n.reserve(runtimetest.GPU0, "slice-000")
	bundle := n.bundle("b", "true", env)
	n.prefix = []string{"/bin/sh", "-c", `umask 0; exec "$0" "$@"`}
	_ = n.runtime("--log", n.path("log"), "create", "--bundle", bundle, "c1").Run()
	must.Len(t, 1, n.spec(bundle).Hooks.Poststop)
	must.FileExists(t, n.path("log"), must.Sprint("nothing was said of the image, which lacks glibc"))
	for _, dir := range []string{n.cfg.StateDir, n.cfg.RunDir, bundle, n.path("log")} {
		must.NoError(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err != nil || info.Mode()&os.ModeSymlink != 0 || filepath.Base(path) == "usage" {
				return err
			}
			must.Zero(t, info.Mode().Perm()&0o022, must.Sprintf("%s: %s", path, info.Mode()))
			return nil
		}))
	}
	for _, dir := range []string{filepath.Join(n.cfg.RunDir, "claims"), filepath.Join(n.cfg.StateDir, "claims")} {
		info, err := os.Stat(dir)
		must.NoError(t, err)
		must.Eq(t, 0o700, info.Mode().Perm(), must.Sprint(dir))
	}
}
