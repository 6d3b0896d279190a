package wrapper_test

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// process writes what an engine hands to exec: the environment that it has configured.
func (n *node) process(name string, env ...string) string {
	n.t.Helper()
	content, err := json.Marshal(map[string]any{
		"user": map[string]any{"uid": 0, "gid": 0}, "cwd": "/", "args": []string{"/bin/busybox", "env"},
		"env": append([]string{"PATH=/bin", "HOME=/"}, env...),
	})
	must.NoError(n.t, err)
	must.NoError(n.t, os.WriteFile(n.path(name), content, 0o600))
	return n.path(name)
}

// What is executed in a container sees no more of its claim than its first process does.
func TestContainer_Exec(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			_, token := n.reserve(runtimetest.GPU0, "slice-000")
			bundle := n.image(n.bundle("b", "exec busybox sleep 1000", token, "NVIDIA_VISIBLE_DEVICES=all", "A=1"))
			must.NoError(t, n.create("c1", bundle), must.Func(func() string { return n.output("c1") }))
			n.must(n.oci("start", "c1"))

			configured := []string{token, "NVIDIA_VISIBLE_DEVICES=all", "A=1", "TRANCHE_GPU_MEMORY=1GiB"}
			const want = "PATH=/bin\nHOME=/\nA=1\nNVIDIA_VISIBLE_DEVICES=void\n"
			for _, flag := range []string{"--process", "-p"} {
				must.Eq(t, want, n.must(n.oci("exec", flag, n.process("p"+flag, configured...), "c1")))
			}
			must.Eq(t, want, n.must(n.oci("exec", "--process="+n.process("joined", configured...), "c1")))

			// What is executed by the command line alone has the environment of the container's spec, which was edited.
			stated := n.must(n.oci("exec", "--env", "B=2", "c1", "/bin/busybox", "sh", "-c", "busybox env", "--process", "p"))
			must.StrNotContains(t, stated, token)
			must.StrContains(t, stated, "B=2\n")
		})
	}
}

// What is executed in other containers is as its engine has it, also where it comes by a pipe.
func TestContainer_ExecWithoutClaim(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			must.NoError(t, n.create("c1", n.image(n.bundle("b", "exec busybox sleep 1000"))),
				must.Func(func() string { return n.output("c1") }))
			n.must(n.oci("start", "c1"))
			process := n.process("p", "NVIDIA_VISIBLE_DEVICES=all", "TRANCHE_GPU_MEMORY=1GiB")
			before := readFile(t, process)
			const want = "PATH=/bin\nHOME=/\nNVIDIA_VISIBLE_DEVICES=all\nTRANCHE_GPU_MEMORY=1GiB\n"
			must.Eq(t, want, n.must(n.oci("exec", "--process", process, "c1")))
			must.Eq(t, before, readFile(t, process))

			pipe := n.path("pipe")
			must.NoError(t, syscall.Mkfifo(pipe, 0o600))
			cmd := n.oci("exec", "--process", pipe, "c1")
			var output strings.Builder
			cmd.Stdout = &output
			must.NoError(t, cmd.Start())
			hangs := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer hangs.Stop()
			must.NoError(t, os.WriteFile(pipe, []byte(before), 0o600)) // waits for the next runtime to read it
			must.NoError(t, cmd.Wait())
			must.Eq(t, want, output.String())
		})
	}
}
