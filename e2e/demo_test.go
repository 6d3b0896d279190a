//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// demo runs the demo as `make demo` does and returns what it prints.
func demo(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // it has deadlines of its own
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(build, "e2e/demo"),
		append([]string{"-build", build, "-nomad", filepath.Join(build, "tools/nomad")}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestDemo runs `make demo`'s program: every promise is shown and held, and nothing is left behind.
func TestDemo(t *testing.T) {
	ownTemp(t)
	before := traces(t)
	out, err := demo(t)
	t.Log("\n" + out)
	must.NoError(t, err)
	for _, promise := range []string{
		"a container without a device block sees no GPU",
		"first sees a GPU of 8192 MiB",
		"second sees a GPU of 8192 MiB",
		"first allocates up to that, then is refused",
		"first holds 8192 MiB of the GPU, never more",
		"both run at the same time on one GPU",
		"the first keeps computing while the second is refused",
		"greedy is held at its 4096 MiB",
		"a job whose slices don't fit waits as blocked",
		"it starts by itself when another job stops",
		"the first job never noticed",
		"a task with 30% of the GPU's time has it",
		"when the jobs have stopped, their memory is free",
	} {
		must.RegexMatch(t, regexp.MustCompile(regexp.QuoteMeta(promise)+`.* ok`), out)
	}
	must.StrNotContains(t, out, "FAILED")
	must.StrContains(t, out, "SIMULATED")
	must.Eq(t, before, traces(t))
	must.DirNotExists(t, filepath.Join(build, "demo/node"))
}

// TestDemoKept leaves the demo's node running, looks around as the demo says, and stops it.
func TestDemoKept(t *testing.T) {
	ownTemp(t)
	before := traces(t)
	out, err := demo(t, "-keep")
	t.Cleanup(func() { _, _ = demo(t, "-stop") })
	must.NoError(t, err, must.Sprint(out))
	look := func(command ...string) string {
		cmd := exec.CommandContext(deadline(t), filepath.Join(build, "demo/bin", command[0]), command[1:]...)
		cmd.Dir = filepath.Dir(build) // where the demo is run from, and examples/ lies
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%v: %s", command, out))
		return string(out)
	}
	must.StrContains(t, look("nomad", "node", "status", "-self"), "nvidia/slice")
	must.StrContains(t, look("nomad", "job", "run", "examples/no-gpu.nomad.hcl"), "finished with status \"complete\"")
	must.StrContains(t, look("tranche", "status"), "NVIDIA H200")
	must.StrContains(t, look("tranche", "claim", "list"), "8192 MiB")
	must.StrContains(t, look("tranche", "doctor"), " 0 faults")
	must.StrContains(t, look("tranche", "top", "--once"), "default/first/")
	pages := regexp.MustCompile(`pages are at (http://[^ ,]+/),`).FindStringSubmatch(out)
	must.Len(t, 2, pages, must.Sprint(out))
	must.StrContains(t, read(t, pages[1]), "NVIDIA H200")
	must.StrContains(t, read(t, pages[1]+"metrics"), `nomad_job="first"`)
	must.StrContains(t, read(t, pages[1]+"waiting"), "No group waits for a device.")

	_, err = demo(t)
	must.Error(t, err, must.Sprint("a second demo started beside the first"))

	out, err = demo(t, "-stop")
	must.NoError(t, err, must.Sprint(out))
	must.Eq(t, before, traces(t))
}

// ownTemp mounts an empty directory on /tmp for the rest of the test: other programs of the machine make files there. What the
// tests are run from stays visible.
func ownTemp(t *testing.T) {
	t.Helper()
	root := filepath.Dir(build)
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	defer unix.Close(dir)
	must.NoError(t, unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"))
	t.Cleanup(func() { must.NoError(t, unix.Unmount("/tmp", unix.MNT_DETACH)) })
	if strings.HasPrefix(root, "/tmp/") {
		must.NoError(t, os.MkdirAll(root, 0o755))
		must.NoError(t, unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir), root, "", unix.MS_BIND|unix.MS_REC, ""))
		t.Cleanup(func() { must.NoError(t, unix.Unmount(root, unix.MNT_DETACH)) })
	}
}

// traces is what a node could leave behind on the machine: processes, mounts, network, cgroups and files.
func traces(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	commands := map[string]string{
		"mounts":    "sort /proc/self/mounts",
		"network":   "ls /sys/class/net; ls -A /run/netns 2>/dev/null; iptables-save | grep -v '^#' | sed 's/\\[.*\\]//'",
		"cgroups":   "find /sys/fs/cgroup -maxdepth 3 -type d | sort",
		"temporary": "find /tmp -maxdepth 1 \\( -name 'nomad*' -o -name 'containerd*' -o -name 'plugin*' \\)",
		"files":     "find /run /var/lib /etc /opt -newer " + os.Args[0] + " -not -path '/run/tmp/*' | sort",
	}
	for name, command := range commands {
		out, err := exec.Command("sh", "-c", command).Output()
		must.NoError(t, err, must.Sprint(name))
		found[name] = string(out)
	}
	found["processes"] = processes(t)
	return found
}

// processes are the commands that run in this PID namespace, but for those that end by themselves.
func processes(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/exe")
	must.NoError(t, err)
	var all []string
	for _, path := range paths {
		if target, err := os.Readlink(path); err == nil {
			all = append(all, fmt.Sprintf("%s %s", strings.Split(path, "/")[2], target))
		}
	}
	return strings.Join(all, "\n")
}

// TestNeedsRoot runs what `make demo` runs first as somebody else: it says what it needs root for and stops.
func TestNeedsRoot(t *testing.T) {
	cmd := exec.CommandContext(deadline(t), "sh", "-s", "make demo")
	script, err := os.Open("../scripts/need-root")
	must.NoError(t, err)
	defer script.Close()
	cmd.Stdin = script // which nobody may not be able to open
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	must.Error(t, err)
	must.StrContains(t, string(out), "make demo needs root")
}

// TestBench runs the benchmark once through, so that it is known to run, and checks the form of what it writes. Packing takes a
// quarter of an hour: what it reckons with is tested beside it.
func TestBench(t *testing.T) {
	cmd := exec.CommandContext(deadline(t), filepath.Join(build, "e2e/bench"), "-build", build, "-rounds", "1", "-containers", "2",
		"-only", "calls,containers,tasks,device,agent", "-tasks", "2", "-at-once", "3", "-bursts", "1",
		"-fingerprints", "2", "-reserves", "8", "-ticks", "2", "-scrapes", "2", "-scrape-periods", "1", "-out", filepath.Join(t.TempDir(), "bench.tsv"))
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	must.StrContains(t, string(out), "SIMULATED")
	for _, row := range []string{"allocate_free", "mem_get_info", "launch", "create-to-start", "task-start", "task-exit",
		"task-start-3", "task-exit-3", "fingerprint-message", "reserve", "stats-cpu", "agent-scrape", "agent-cpu", "agent-memory"} {
		must.StrContains(t, string(out), row)
	}
	lines := strings.Split(strings.TrimSpace(readFile(t, cmd.Args[len(cmd.Args)-1])), "\n")
	must.Eq(t, "benchmark\tvariant\tthreads\tmedian\tp99\tunit", lines[0])
	variants := map[string]int{}
	for _, line := range lines[1:] {
		fields := strings.Split(line, "\t")
		must.Len(t, 6, fields)
		// Tasks are compared with Docker's, where it is installed.
		if !strings.HasPrefix(fields[0], "task-") {
			variants[fields[1]]++
		}
	}
	must.Positive(t, variants["bare"])
	must.Eq(t, variants["bare"], variants["tranche"])
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(text)
}
