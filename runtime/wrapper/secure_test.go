package wrapper_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// firstSearched is where the loader looks before the directory of the node's driver.
const firstSearched = "/lib/x86_64-linux-gnu/libcuda.so.1"

// secureCases are the ways in which the driver gets into a container, beside the driver's own CDI specification.
var secureCases = []struct {
	name string
	lay  func(t *testing.T, g *gpuNode, bundle string)
}{
	{"the node's driver", func(*testing.T, *gpuNode, string) {}},
	{"a driver copy in the image", func(t *testing.T, g *gpuNode, bundle string) {
		g.copyTo(bundle, g.driver(), "/opt/forward/libcuda.so.1")
		runtimetest.WriteFile(t, filepath.Join(bundle, "rootfs/etc/ld.so.conf"), "/opt/forward\n"+runtimetest.LibDir+"\n")
		g.must(exec.Command("ldconfig", "-r", filepath.Join(bundle, "rootfs")))
	}},
	{"a driver copy that the job mounts", func(_ *testing.T, g *gpuNode, bundle string) {
		g.mountDriver(bundle, firstSearched)
	}},
	{"a driver copy that the job mounts, and libraries of another architecture", func(t *testing.T, g *gpuNode, bundle string) {
		g.mountDriver(bundle, firstSearched)
		// 32-bit programs' driver: for the loader of a 64-bit program a file that it passes over.
		other := filepath.Join(t.TempDir(), "libcuda.so.1")
		content := []byte(readFile(t, g.driver()))
		content[4] = 1 // ELFCLASS32
		must.NoError(t, os.WriteFile(other, content, 0o755))
		g.mount(bundle, other, "/usr/lib/i386-linux-gnu/libcuda.so.1")
	}},
	{"a driver that a hook mounts", func(_ *testing.T, g *gpuNode, bundle string) { g.mountByHook(bundle, firstSearched) }},
	{"a user namespace", func(_ *testing.T, g *gpuNode, bundle string) { g.inUserNamespace(bundle) }},
	{"a root whose mounts are shared", func(t *testing.T, _ *gpuNode, bundle string) {
		editSpec(t, bundle, func(spec *specs.Spec) { spec.Linux.RootfsPropagation = "shared" })
	}},
}

// mount has a job mount a file.
func (g *gpuNode) mount(bundle, source, destination string) {
	editSpec(g.t, bundle, func(spec *specs.Spec) {
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: destination, Type: "bind", Source: source, Options: []string{"ro", "bind"},
		})
	})
}

// mountDriver has a job mount a copy of the driver.
func (g *gpuNode) mountDriver(bundle, destination string) {
	g.t.Helper()
	file := filepath.Join(g.t.TempDir(), "libcuda.so.1")
	must.NoError(g.t, os.WriteFile(file, []byte(readFile(g.t, g.driver())), 0o755))
	g.mount(bundle, file, destination)
}

// honourSetuid puts a bundle's directory on a file system of its own, since the one of tests may ignore the set-user-ID bit.
func (g *gpuNode) honourSetuid(bundle string) {
	g.t.Helper()
	dir := g.path(bundle)
	must.NoError(g.t, os.Mkdir(dir, 0o755))
	must.NoError(g.t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"))
	g.t.Cleanup(func() { must.NoError(g.t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// asUser runs the container's programs as a user without privileges.
func asUser(t *testing.T, bundle string, uid uint32) {
	t.Helper()
	editSpec(t, bundle, func(spec *specs.Spec) {
		spec.Process.User = specs.User{UID: uid, GID: uid}
		spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_NET_BIND_SERVICE"}}
	})
}

// secureProgram gives the image a program that is linked with libcuda.so.1 and that the loader trusts less than the caller:
// one with the set-user-ID bit, or with a file capability, so that the kernel sets AT_SECURE for it.
func (g *gpuNode) secureProgram(bundle, by string) {
	g.t.Helper()
	program := filepath.Join(bundle, "rootfs/bin/secure")
	g.must(exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-DPROBE_LINKED", "-DPROBE_SECURE", "-o", program,
		"../../intercept/tests/loader_probe.c", g.driver()))
	var info unix.Stat_t
	must.NoError(g.t, unix.Stat(filepath.Join(bundle, "rootfs/bin/probe"), &info))
	must.NoError(g.t, os.Chown(program, int(info.Uid), int(info.Gid)))
	must.NoError(g.t, os.Chmod(program, 0o755))
	if by == "setuid" {
		must.NoError(g.t, os.Chmod(program, 0o755|os.ModeSetuid))
		return
	}
	g.must(exec.Command("setcap", "cap_net_bind_service=ep", program))
}

// A program for which the loader refuses $ORIGIN in the names of libraries starts all the same, and has the claim's limit.
func TestSecure(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		for _, by := range []string{"setuid", "setcap"} {
			for _, tc := range secureCases {
				if by == "setcap" && tc.name == "a user namespace" {
					continue // the kernel ignores file capabilities that another namespace gave
				}
				t.Run(fmt.Sprintf("%s/%s/%s", next, by, tc.name), func(t *testing.T) {
					g := newGPUNode(t, next)
					g.honourSetuid("b")
					bundle := g.glibcImage("b", "secure")
					g.secureProgram(bundle, by)
					tc.lay(t, g, bundle)
					if tc.name == "a user namespace" {
						g.secureProgram(bundle, by) // a new owner takes the bit away
					}
					asUser(t, bundle, 1000)
					must.Eq(t, "shadow\n", g.must(g.oci("run", "--bundle", bundle, "c1")))
					must.Between(t, 1, g.peakMiB(), limitMiB)
				})
			}
		}
	}
}
