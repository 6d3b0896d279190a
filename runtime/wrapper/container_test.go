package wrapper_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// busybox is the whole image of the containers here. It has to be linked statically.
const busybox = "/bin/busybox"

// newContainerNode is a node whose containers are real, by runc or crun.
func newContainerNode(t *testing.T, next string) *node {
	t.Helper()
	needs.Programs(t, "to start containers", next, busybox)
	n := newNode(t, next)
	if next == "crun" {
		// crun refuses to run on cgroup v1 where v2 is mounted beside it, which is nothing of ours: hide it.
		n.prefix = []string{"unshare", "--mount", "sh", "-c",
			`if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && [ -e /sys/fs/cgroup/unified ]; then
				umount /sys/fs/cgroup/unified
			fi; exec "$0" "$@"`}
	}
	return n
}

// image puts busybox into a bundle.
func (n *node) image(bundle string) string {
	n.t.Helper()
	content, err := os.ReadFile(busybox)
	must.NoError(n.t, err)
	must.NoError(n.t, os.WriteFile(filepath.Join(bundle, "rootfs", busybox), content, 0o755))
	return bundle
}

// oci is a command of tranche-runtime with a state directory of its own. Containers that are left go with the test.
func (n *node) oci(args ...string) *exec.Cmd {
	return n.runtime(append([]string{"--root", n.path("oci")}, args...)...)
}

// create makes a container, up to the start of its process.
func (n *node) create(id, bundle string) error {
	output, err := os.OpenFile(n.path(id+".out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644) // hooks write to it too
	must.NoError(n.t, err)
	defer output.Close()
	cmd := n.oci("create", "--bundle", bundle, id)
	cmd.Stdout, cmd.Stderr = output, output
	n.t.Cleanup(func() { _ = n.oci("delete", "--force", id).Run() })
	return cmd.Run()
}

func (n *node) output(id string) string { return readFile(n.t, n.path(id+".out")) }

// must runs a command that has to succeed.
func (n *node) must(cmd *exec.Cmd) string {
	n.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	must.NoError(n.t, cmd.Run(), must.Sprintf("%v: %s", cmd.Args, &stderr))
	return stdout.String()
}

func (n *node) status(id string) string {
	n.t.Helper()
	var state struct{ Status string }
	must.NoError(n.t, json.Unmarshal([]byte(n.must(n.oci("state", id))), &state))
	return state.Status
}

func (n *node) waitFor(what string, condition func() bool) {
	n.t.Helper()
	soon := wait.InitialSuccess(wait.BoolFunc(condition), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond))
	must.Wait(n.t, soon, must.Sprint(what))
}

// look is what a container sees of what the edits brought it.
const look = `
lib=` + runtimetest.LibDir + `
echo "shadow: $(busybox tail -n 1 $lib/libcuda.so.570.124.06)"
echo "real: $(busybox cat $lib/.tranche/driver-libcuda.so)"
echo "nvml shadow: $(busybox tail -n 1 $lib/libnvidia-ml.so.570.124.06)"
echo "nvml real: $(busybox cat $lib/.tranche/driver-libnvidia-ml.so)"
echo "nodes: $(busybox echo /dev/nvidia*)"
echo "node opens: $(busybox head -c 4 /dev/nvidia0 | busybox wc -c)"
echo "claims: $(busybox ls /.tranche/claims)"
echo "limit: $(busybox head -c 7 /.tranche/claims/*/limit)"
try() { name=$1; shift; if "$@" 2>/dev/null; then echo "$name: done"; else echo "$name: refused"; fi; }
try "write limit" busybox dd if=/dev/zero of=/.tranche/claims/$1/limit bs=1 count=1 conv=notrunc
try "write usage" busybox dd if=/dev/zero of=/.tranche/claims/$1/usage bs=1 seek=4200 count=1 conv=notrunc
try "add region" busybox mkdir /.tranche/claims/ffffffff
try "move ours" busybox mv /.tranche /mine
try "move claims" busybox mv /.tranche/claims /.tranche/mine
try "remove usage" busybox rm /.tranche/claims/$1/usage
try "replace shadow" busybox mv $lib/.tranche/driver-libcuda.so $lib/libcuda.so.570.124.06
try "write shadow" busybox dd if=/dev/zero of=$lib/libcuda.so.570.124.06 bs=1 count=1
busybox grep ' /usr/lib.*libcuda' /proc/self/mounts | while read -r _ at _ options _; do
	case ,$options, in *,noexec,*) echo "$at: noexec";; *,ro,*) echo "$at: ro";; *) echo "$at: $options";; esac
done
busybox env | busybox sort
`

// lacksGlibc is what the user of an image without a C library is told, as the first line of the container's stderr.
const lacksGlibc = "tranche-runtime: the image has no C library that programs could load and no glibc " +
	"(/lib64/ld-linux-x86-64.so.2), which NVIDIA's driver needs (2.17 or newer): its programs find no GPU; use an image with glibc"

func TestContainer(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			made, env := n.reserve(runtimetest.GPU0, "slice-000")
			bundle := n.image(n.bundle("b", "set -- "+made.ID+"\n"+look, env, "LD_PRELOAD=/job/own.so"))
			// An image that brings a region of its own making.
			forged := filepath.Join(bundle, "rootfs/.tranche/claims/deadbeef")
			runtimetest.WriteFile(t, filepath.Join(forged, "limit"), "forged")

			must.NoError(t, n.create("c1", bundle), must.Func(func() string { return n.output("c1") }))
			holder := n.holder(made.ID)
			must.NotNil(t, holder)
			must.Eq(t, "c1", holder.ID)
			must.Positive(t, holder.InitPID)
			must.StrHasPrefix(t, next, holder.Runtime)

			n.must(n.oci("start", "c1"))
			n.waitFor("the container ends", func() bool { return n.status("c1") == "stopped" })
			want := []string{
				lacksGlibc, "shadow: shadow libcuda", "real: driver's libcuda",
				"nvml shadow: shadow libnvidia-ml", "nvml real: driver's libnvidia-ml",
				"nodes: /dev/nvidia0 /dev/nvidiactl", "node opens: 4", "claims: " + made.ID, "limit: TRNCLIM",
				"write limit: refused", "write usage: done", "add region: refused",
				"move ours: refused", "move claims: refused", "remove usage: refused",
				"replace shadow: refused", "write shadow: refused",
				// The spec's shadow, and over it the hook's, which names the driver by an absolute path.
				runtimetest.LibDir + "/.tranche/driver-libcuda.so: ro",
				runtimetest.LibDir + "/libcuda.so.570.124.06: ro", runtimetest.LibDir + "/libcuda.so.570.124.06: ro",
				"HOME=/", "LD_PRELOAD=/job/own.so", "NVIDIA_VISIBLE_DEVICES=void", "PATH=/bin", "PWD=/", "SHLVL=1",
			}
			must.Eq(t, want, strings.Split(strings.TrimSpace(n.output("c1")), "\n"))

			must.NotNil(t, n.holder(made.ID), must.Sprint("released before the container was deleted"))
			n.must(n.oci("delete", "c1"))
			must.Nil(t, n.holder(made.ID))

			// A restart in place: the same claim, another container.
			again := n.image(n.bundle("b2", "echo again", env))
			must.NoError(t, n.create("c2", again), must.Func(func() string { return n.output("c2") }))
			must.Eq(t, "c2", n.holder(made.ID).ID)
		})
	}
}

func TestContainer_TwoGPUs(t *testing.T) {
	n := newContainerNode(t, "runc")
	first, firstEnv := n.reserve(runtimetest.GPU0, "slice-000")
	second, secondEnv := n.reserve(runtimetest.GPU1, "slice-000")
	script := "busybox echo /dev/nvidia*; busybox ls /.tranche/claims | busybox wc -l"
	bundle := n.image(n.bundle("b", script, firstEnv, secondEnv))
	must.Eq(t, "/dev/nvidia0 /dev/nvidia1 /dev/nvidiactl\n2\n", n.must(n.oci("run", "--bundle", bundle, "c1")))
	must.Nil(t, n.holder(first.ID))
	must.Nil(t, n.holder(second.ID))
}

func TestContainer_WithoutClaimSeesNoGPU(t *testing.T) {
	n := newContainerNode(t, "runc")
	script := "busybox ls /dev | busybox grep -c nvidia; busybox ls -d /.tranche || true"
	bundle := n.image(n.bundle("b", script))
	must.Eq(t, "0\n", n.must(n.oci("run", "--bundle", bundle, "c1")))
}

// A claim's token in a second container gets that one an error, and the first continues.
func TestContainer_ClaimOfAnother(t *testing.T) {
	sleep := "exec busybox sleep 1000"
	for _, when := range []string{"the spec is edited", "the hook binds"} {
		t.Run("refused when "+when, func(t *testing.T) {
			n := newContainerNode(t, "runc")
			own, ownEnv := n.reserve(runtimetest.GPU1, "slice-000")
			taken, takenEnv := n.reserve(runtimetest.GPU0, "slice-000")
			thief := n.image(n.bundle("thief", sleep, ownEnv, takenEnv))
			if when == "the hook binds" {
				// The thief's spec is edited while the claim is still free; the claim is bound before it is created.
				n.configure("/bin/true")
				n.must(n.oci("create", "--bundle", thief, "thief"))
				n.configure("runc")
			}
			owner := n.image(n.bundle("owner", sleep, takenEnv))
			must.NoError(t, n.create("owner", owner), must.Func(func() string { return n.output("owner") }))
			n.must(n.oci("start", "owner"))
			before := n.holder(taken.ID)

			must.Error(t, n.create("thief", thief))
			message := n.output("thief")
			for _, want := range []string{taken.ID, "container thief", "container owner (runc", "still runs"} {
				must.StrContains(t, message, want)
			}
			_, token, _ := strings.Cut(takenEnv, "=")
			must.StrNotContains(t, message, token)

			must.Eq(t, "running", n.status("owner"))
			must.Eq(t, before, n.holder(taken.ID))
			must.Nil(t, n.holder(own.ID), must.Sprint("the thief's own claim stayed bound"))
			must.Error(t, n.oci("state", "thief").Run())
		})
	}
}

// A container that is killed leaves its claim to the next one, even if nobody deletes it.
func TestContainer_Killed(t *testing.T) {
	n := newContainerNode(t, "runc")
	made, env := n.reserve(runtimetest.GPU0, "slice-000")
	must.NoError(t, n.create("c1", n.image(n.bundle("b", "exec busybox sleep 1000", env))))
	n.must(n.oci("start", "c1"))
	must.NoError(t, syscall.Kill(n.holder(made.ID).InitPID, syscall.SIGKILL))
	n.waitFor("the container ends", func() bool { return n.status("c1") == "stopped" })

	again := n.image(n.bundle("b2", "echo again", env))
	must.Eq(t, "again\n", n.must(n.oci("run", "--bundle", again, "c2")))
	n.must(n.oci("delete", "c1"))
	must.Nil(t, n.holder(made.ID))
}
