package wrapper_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

const (
	lacksAny  = "the image has no C library that programs could load and no glibc (/lib64/ld-linux-x86-64.so.2)"
	lacksMusl = "the image has musl as its C library and no glibc (/lib64/ld-linux-x86-64.so.2)"
)

// runSaying runs a container to its end and returns what came to its output, and to the standard error and the log of
// the runtime.
func (n *node) runSaying(bundle string) (stdout, stderr, log string) {
	n.t.Helper()
	var out, err bytes.Buffer
	cmd := n.oci("--log", n.path("log"), "--log-format", "json", "run", "--bundle", bundle, "c1")
	cmd.Stdout, cmd.Stderr = &out, &err
	must.NoError(n.t, cmd.Run(), must.Sprint(&err))
	return out.String(), err.String(), readFile(n.t, n.path("log"))
}

// An image without glibc starts, and its user is told in one line.
func TestLacks_NoCLibrary(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			made, env := n.reserve(runtimetest.GPU0, "slice-000")
			stdout, stderr, log := n.runSaying(n.image(n.bundle("b", "echo started", env)))
			must.Eq(t, "started\n", stdout)
			must.Eq(t, 1, strings.Count(stderr, "\n"), must.Sprintf("not one line: %q", stderr))
			must.StrHasPrefix(t, "tranche-runtime: "+lacksAny, stderr)
			var entry struct{ Level, Msg string }
			must.NoError(t, json.Unmarshal([]byte(strings.Split(log, "\n")[0]), &entry))
			must.Eq(t, "warning", entry.Level)
			must.StrHasPrefix(t, lacksAny, entry.Msg)

			// `tranche status` has it from the claim.
			claims, _, err := n.ledger.List(t.Context())
			must.NoError(t, err)
			must.Eq(t, made.ID, claims[0].ID)
			must.StrHasPrefix(t, lacksAny, claims[0].Container.Lacks)
		})
	}
}

// A request that is misspelled is none: its author is told where the container's output is.
func TestMisspelledRequest(t *testing.T) {
	n := newContainerNode(t, "runc")
	stdout, stderr, log := n.runSaying(n.image(n.bundle("b", "echo started", "TRANCHE_GPU_MEMMORY=1GiB")))
	must.Eq(t, "started\n", stdout)
	const warning = `the environment variable "TRANCHE_GPU_MEMMORY" has no meaning: did you mean TRANCHE_GPU_MEMORY?`
	must.Eq(t, "tranche-runtime: "+warning+"\n", stderr)
	must.StrContains(t, log, "did you mean TRANCHE_GPU_MEMORY?")
}

// An image of musl's: its program runs, and finds no way past the limit, wherever it looks for the driver.
func TestLacks_Musl(t *testing.T) {
	for _, next := range []string{"runc", "crun"} {
		for name, dir := range map[string]string{"mounted": runtimetest.LibDir, "compat": "/usr/local/cuda/compat"} {
			t.Run(next+"/"+name, func(t *testing.T) {
				g := newGPUNode(t, next)
				bundle := g.image(g.bundle("b", "echo started; probe lazy dlsym libcuda.so.1",
					g.made, "LD_LIBRARY_PATH="+dir, "PROBE_LIMIT_MIB=1024"))
				g.copyTo(bundle, "/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-x86_64.so.1")
				g.must(exec.Command("musl-gcc", "-std=c11", "-D_GNU_SOURCE", "-DPROBE_STATIC", "-DRTLD_DEEPBIND=0", "-O1",
					"-o", filepath.Join(bundle, "rootfs/bin/probe"), "../../intercept/tests/loader_probe.c"))
				layCompat(t, g, bundle)
				stdout, stderr, _ := g.runSaying(bundle)
				t.Log(stdout, stderr)
				said := strings.Fields(stdout)
				must.SliceNotEmpty(t, said)
				must.Eq(t, "started", said[0])
				must.StrContains(t, stderr, lacksMusl)
				must.SliceNotContains(t, said, "past")
				// Its loader does not take the driver anyway; what it tried to take was behind the shadow.
				must.StrContains(t, stderr, "/.tranche/")
				must.LessEq(t, limitMiB, g.peakMiB())
			})
		}
	}
}

// Nothing is said of an image that lacks nothing.
func TestLacks_Nothing(t *testing.T) {
	g := newGPUNode(t, "runc")
	stdout, stderr, log := g.runSaying(g.glibcImage("b", "probe lazy dlsym "+runtimetest.LibDir+"/libcuda.so.1"))
	must.Eq(t, "shadow\n", stdout)
	must.StrNotContains(t, stderr, "tranche-runtime")
	must.Eq(t, "", log)
}
