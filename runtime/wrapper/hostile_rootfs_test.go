package wrapper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// touched are the paths in a root file system at which something of ours, or of NVIDIA's hooks, is mounted, made, read or
// written. Those that end in a slash are directories.
var touched = []string{
	"/.tranche/", "/.tranche/claims/", "/usr/", "/usr/bin/", "/usr/bin/nvidia-smi", "/lib/",
	runtimetest.LibDir + "/", runtimetest.LibDir + "/.tranche/", runtimetest.LibDir + "/libcuda.so.570.124.06",
	runtimetest.LibDir + "/libcuda.so", runtimetest.LibDir + "/libcuda.so.1", runtimetest.LibDir + "/libnvidia-ml.so.1",
	"/etc/", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d/", "/etc/nvidia/", "/sbin/ldconfig",
}

// outside is a part of the host that looks like what an attacker wants his links to lead to, and is watched.
type outside struct {
	t     *testing.T
	dir   string
	watch int
	names map[int32]string
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{t: t, dir: filepath.Join(t.TempDir(), "outside"), names: map[int32]string{}}
	for _, path := range touched {
		if at := filepath.Join(o.dir, path); strings.HasSuffix(path, "/") {
			must.NoError(t, os.MkdirAll(at, 0o755))
		} else {
			runtimetest.WriteFile(t, at, "the host's\n")
		}
	}
	return o
}

// observe begins to note who opens, changes or makes anything in there.
func (o *outside) observe() {
	o.t.Helper()
	var err error
	o.watch, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must.NoError(o.t, err)
	o.t.Cleanup(func() { _ = unix.Close(o.watch) })
	must.NoError(o.t, filepath.WalkDir(o.dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			watch, addErr := unix.InotifyAddWatch(o.watch, path, unix.IN_ALL_EVENTS)
			o.names[int32(watch)] = path
			return addErr
		}
		return err
	}))
	o.drain()
}

// drain takes what was noted so far.
func (o *outside) drain() (events []string) {
	buffer := make([]byte, 64<<10)
	for {
		size, err := unix.Read(o.watch, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return events
		}
		must.NoError(o.t, err)
		for at := 0; at+unix.SizeofInotifyEvent <= size; {
			watch := int32(buffer[at]) | int32(buffer[at+1])<<8
			mask := uint32(buffer[at+4]) | uint32(buffer[at+5])<<8 | uint32(buffer[at+6])<<16
			length := int(buffer[at+12]) | int(buffer[at+13])<<8
			name := strings.TrimRight(string(buffer[at+16:at+16+length]), "\x00")
			events = append(events, fmt.Sprintf("%s/%s (%#x)", o.names[watch], name, mask))
			at += unix.SizeofInotifyEvent + length
		}
	}
}

// link makes what is at a path in a root file system a link that leads outside.
func (o *outside) link(rootfs, path, form string) {
	o.t.Helper()
	at := filepath.Join(rootfs, path)
	must.NoError(o.t, os.MkdirAll(filepath.Dir(at), 0o755))
	must.NoError(o.t, os.RemoveAll(at))
	target := filepath.Join(o.dir, path)
	if form == "relative" {
		target = strings.Repeat("../", 40) + target[1:]
	}
	must.NoError(o.t, os.Symlink(target, at))
}

// CVE-2024-0132, CVE-2024-0133, CVE-2024-0134, CVE-2025-23267: an image with a link at each path that we or NVIDIA's hooks
// touch. Whether the container starts is one thing; nothing of the host is opened, changed or made in either case.
func TestHostileRootfs_Links(t *testing.T) {
	for next, forms := range map[string][]string{"runc": {"absolute", "relative"}, "crun": {"relative"}} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			n.simulatedNVML() // for the hooks that a generated specification calls
			_, env := n.reserve(simulatedGPU, "slice-000")
			o := newOutside(t)
			o.observe()
			started := 0
			for i, path := range touched {
				for _, form := range forms {
					id := fmt.Sprintf("c-%d-%s", i, form)
					bundle := n.image(n.bundle(id, "busybox true", env))
					o.link(filepath.Join(bundle, "rootfs"), path, form)
					if n.oci("run", "--bundle", bundle, id).Run() == nil {
						started++
					}
					events := o.drain()
					must.SliceEmpty(t, events, must.Sprintf("%s is an %s link: %s", path, form, strings.Join(events, ", ")))
				}
			}
			must.Positive(t, started, must.Sprint("no container came far enough for a hook to do harm"))
			must.NotEq(t, "", readFile(t, n.path("asked")))
		})
	}
}

// An image whose /dev, /proc or /sys is a link has the next runtime make files where that leads on the host, which is for
// nobody to find out: it is not started.
func TestHostileRootfs_LinkedSystemDirs(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			n.simulatedNVML()
			_, env := n.reserve(simulatedGPU, "slice-000")
			o := newOutside(t)
			for _, dir := range []string{"/dev", "/proc", "/sys"} {
				must.NoError(t, os.MkdirAll(filepath.Join(o.dir, dir), 0o755))
			}
			o.observe()
			for _, claim := range []string{env, "NO=claim"} {
				for _, dir := range []string{"/dev", "/proc", "/sys"} {
					bundle := n.image(n.bundle("b"+dir+claim[:2], "busybox true", claim))
					o.link(filepath.Join(bundle, "rootfs"), dir, "absolute")
					stderr := n.fails(n.oci("run", "--bundle", bundle, "c1"))
					events := o.drain()
					must.SliceEmpty(t, events, must.Sprintf("%s is a link: %s", dir, strings.Join(events, ", ")))
					must.StrContains(t, stderr, dir+" of the image: it is a link")
				}
			}
		})
	}
}

// The links of TestHostileRootfs_Links for hooks alone, and ones that come and go while they work, as a container that shares its files with
// another could make them. No runtime is at work here: runc before 1.1.14 itself opens files outside then (CVE-2024-45310).
func TestHostileRootfs_LinksThatComeAndGo(t *testing.T) {
	n := newContainerNode(t, "/bin/true")
	n.simulatedNVML()
	made, env := n.reserve(simulatedGPU, "slice-000")
	bundle := n.image(n.bundle("b", "busybox true", env))
	n.must(n.oci("create", "--bundle", bundle, "c1"))
	spec := n.spec(bundle)
	o := newOutside(t)
	o.observe()
	stop := o.swap(filepath.Join(bundle, "rootfs"), "/.tranche/", runtimetest.LibDir+"/", "/etc/", "/usr/bin/")
	bound := 0
	for range 15 {
		init := exec.Command("sleep", "1000")
		must.NoError(t, init.Start())
		for _, hook := range slices.Concat(spec.Hooks.CreateRuntime, spec.Hooks.CreateContainer, spec.Hooks.Prestart) { //nolint:staticcheck // see bindingHooks
			_ = n.hook(hook, specs.State{ID: "c1", Pid: init.Process.Pid, Bundle: bundle, Status: "creating"}).Run()
		}
		if holder := n.holder(made.ID); holder != nil && holder.InitPID == init.Process.Pid {
			bound++
		}
		_ = init.Process.Kill()
		_ = init.Wait()
	}
	must.Greater(t, 1000, stop())
	events := o.drain()
	must.SliceEmpty(t, events, must.Sprint(strings.Join(events, "\n")))
	must.Positive(t, bound, must.Sprint("prestart never got as far as to bind"))
	must.Less(t, 15, bound, must.Sprint("prestart never met a link"))
}

// hook is the call of a hook as a runtime makes it, in a mount namespace of its own.
func (n *node) hook(hook specs.Hook, state specs.State) *exec.Cmd {
	n.t.Helper()
	stdin, err := json.Marshal(state)
	must.NoError(n.t, err)
	// The name that a hook is called by need not be its file's.
	call := exec.Command("unshare", append([]string{"--mount", "bash", "-c", `exec -a "$0" "$@"`, hook.Args[0], hook.Path},
		hook.Args[1:]...)...)
	call.Env, call.Stdin = hook.Env, strings.NewReader(string(stdin))
	return call
}

// swap exchanges directories for links to the outside, back and forth, until it is stopped; it returns how often it did.
func (o *outside) swap(rootfs string, paths ...string) (stop func() int) {
	o.t.Helper()
	for _, path := range paths {
		must.NoError(o.t, os.MkdirAll(filepath.Join(rootfs, path), 0o755))
		must.NoError(o.t, os.Symlink(filepath.Join(o.dir, path), filepath.Clean(filepath.Join(rootfs, path))+".link"))
	}
	ctx, cancel := context.WithCancel(o.t.Context())
	var wg sync.WaitGroup
	swaps := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, path := range paths {
				at := filepath.Clean(filepath.Join(rootfs, path))
				// A directory that something is mounted on cannot be moved any more; the others can.
				if unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, at+".link", unix.RENAME_EXCHANGE) == nil {
					swaps++
				}
			}
		}
	})
	return func() int { cancel(); wg.Wait(); return swaps }
}
