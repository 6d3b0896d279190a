package wrapper_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/version"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// nextRuntimes are the runtimes that tranche-runtime is to become without anybody noticing.
var nextRuntimes = []string{"runc", "crun"}

// direct is a command of the next runtime itself, with the directories of oci.
func (n *node) direct(args ...string) *exec.Cmd {
	argv := append(append([]string{}, n.prefix...), n.next, "--root", n.path("oci"))
	argv = append(argv, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "TRANCHE_CONFIG="+n.path("config.toml"))
	return cmd
}

// program is oci or direct.
type program func(args ...string) *exec.Cmd

// step is one call of a runtime.
type step struct {
	args  string
	stdin string
	dir   string
	// file is one that the call may write.
	file string
	// wait is for what the call begins and does not wait for.
	wait func()
}

// outcome is all that a caller sees of a step.
type outcome struct {
	step, stdout, stderr, file string
	exit                       int
}

// varying is what no two containers have in common: process IDs, times, amounts of memory.
var varying = regexp.MustCompile(`\d[\d.]*|0x[0-9a-f]+`)

func (n *node) outcome(run program, s step) outcome {
	n.t.Helper()
	cmd := run(strings.Fields(s.args)...)
	cmd.Dir = s.dir
	cmd.Stdin = strings.NewReader(s.stdin)
	// Files, since a container that continues would keep a pipe open.
	stdout, stderr := n.capture("stdout"), n.capture("stderr")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil {
		must.True(n.t, errors.As(err, &exit), must.Sprint(err))
	}
	if s.wait != nil {
		s.wait()
	}
	o := outcome{step: s.args, exit: cmd.ProcessState.ExitCode(), stdout: n.captured(stdout), stderr: n.captured(stderr)}
	if content, err := os.ReadFile(s.file); err == nil {
		o.file = string(content)
		must.NoError(n.t, os.Remove(s.file))
	}
	for _, text := range []*string{&o.stdout, &o.stderr, &o.file} {
		*text = strings.Join(strings.Fields(varying.ReplaceAllString(*text, "N")), " ")
	}
	return o
}

func (n *node) capture(name string) *os.File {
	file, err := os.Create(n.path(name))
	must.NoError(n.t, err)
	return file
}

func (n *node) captured(file *os.File) string {
	must.NoError(n.t, file.Close())
	return readFile(n.t, file.Name())
}

// TestPassthrough has every subcommand do what it does in the runtime itself: the same output, the same exit status.
func TestPassthrough(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			steps := n.everySubcommand()
			var want []outcome
			for _, s := range steps {
				want = append(want, n.outcome(n.direct, s))
			}
			exits := map[int]bool{}
			for i, s := range steps {
				must.Eq(t, want[i], n.outcome(n.oci, s), must.Sprint(s.args))
				exits[want[i].exit] = true
			}
			// The steps are worth something only if they do what they are to.
			for _, exit := range []int{0, 1, 7, 137} {
				must.True(t, exits[exit], must.Sprintf("no step exits with %d: %+v", exit, want))
			}
		})
	}
}

// everySubcommand is a tour of the command line of runc and crun. What one of them does not know is a step as well.
func (n *node) everySubcommand() []step {
	waits := n.image(n.bundle("waits", "trap 'exit 0' TERM; read line <>/waits")) // one process, from beginning to end
	must.NoError(n.t, unix.Mkfifo(filepath.Join(waits, "rootfs/waits"), 0o600))
	exits := n.image(n.bundle("exits", "busybox cat; exit 7"))
	dies := n.image(n.bundle("dies", "kill -KILL $$; busybox kill -KILL 1; exit 3"))
	must.NoError(n.t, os.Remove(filepath.Join(n.image(n.bundle("nothing", "true")), "config.json")))
	runtimetest.WriteFile(n.t, filepath.Join(exits, "other.json"), readFile(n.t, filepath.Join(exits, "config.json")))
	runtimetest.WriteFile(n.t, n.path("process.json"), `{"cwd": "/", "args": ["/bin/busybox", "id", "-u"], "env": ["A=1"],
		"user": {"uid": 5, "gid": 5}}`)
	gone := func(id string) func() {
		return func() {
			n.waitFor("the container ends", func() bool {
				output, err := n.direct("state", id).Output()
				return err != nil || bytes.Contains(output, []byte(`"stopped"`))
			})
		}
	}
	pid, log := n.path("pid"), n.path("log")
	return []step{
		{args: "--version"}, {args: "-v"}, {args: "--help"}, {args: "features"}, {args: ""}, {args: "help"},
		{args: "nonsense"}, {args: "--nonsense state c1"}, {args: "create --nonsense c1"}, {args: "state c1"},
		{args: "spec", dir: n.dir, file: n.path("config.json")},
		{args: "create --bundle " + n.path("nothing") + " c1"}, {args: "create"},
		{args: "--log " + log + " --log-format json create --bundle " + n.path("nowhere") + " c1", file: log},
		{args: "create --bundle " + waits + " --pid-file " + pid + " c1", file: pid},
		{args: "create --bundle " + waits + " c1"}, {args: "state c1"}, {args: "list"}, {args: "list -q"},
		{args: "list --format json"}, {args: "start c1"}, {args: "start c1"}, {args: "ps c1"}, {args: "ps -f json c1"},
		{args: "exec c1 /bin/busybox cat", stdin: "in\n"}, {args: "exec c1 /bin/busybox sh -c exit\\t7"},
		{args: "exec c1 /bin/busybox false"}, {args: "exec --env A=7 --cwd /bin c1 /bin/busybox env"},
		{args: "exec --process " + n.path("process.json") + " c1"}, {args: "exec c1 /nonexistent"},
		{args: "exec -d --pid-file " + pid + " c1 /bin/busybox true", file: pid},
		{args: "exec c1 /bin/busybox timeout -s KILL 0.01 /bin/busybox sleep 100"},
		{args: "update --memory 67108864 c1"}, {args: "update --nonsense c1"}, {args: "events --stats c1"},
		{args: "pause c1"}, {args: "state c1"}, {args: "resume c1"},
		{args: "checkpoint c1"}, {args: "restore --bundle " + waits + " c2"}, {args: "mounts list c1"},
		{args: "delete c1"}, {args: "kill c1 NONSENSE"}, {args: "kill c1 TERM", wait: gone("c1")}, {args: "kill c1"},
		{args: "state c1"}, {args: "delete c1"}, {args: "delete c1"}, {args: "delete --force c1"},
		{args: "run --bundle " + exits + " c1", stdin: "from stdin\n"}, {args: "run --config other.json c1", dir: exits},
		{args: "run c1", dir: exits, stdin: "x"}, {args: "run --bundle " + dies + " c1"},
		{args: "run -d --bundle " + waits + " --pid-file " + pid + " c1", file: pid},
		{args: "kill --all c1 KILL", wait: gone("c1")}, {args: "delete --force c1"}, {args: "list"},
	}
}

// The descriptors that a caller leaves open reach the container, those for socket activation too.
func TestPassthrough_Descriptors(t *testing.T) {
	for _, next := range nextRuntimes {
		for name, way := range map[string]struct{ flags, env string }{
			"preserve-fds": {"--preserve-fds=1", ""},
			"LISTEN_FDS":   {"", "LISTEN_FDS=1"},
		} {
			t.Run(next+" "+name, func(t *testing.T) {
				n := newContainerNode(t, next)
				made, env := n.reserve(runtimetest.GPU0, "slice-000")
				bundle := n.image(n.bundle("b", "busybox cat <&3; echo $LISTEN_FDS; exit 7", env))
				read, write, err := os.Pipe()
				must.NoError(t, err)
				_, err = io.WriteString(write, "through descriptor 3 ")
				must.NoError(t, errors.Join(err, write.Close()))
				defer read.Close()

				cmd := n.oci(append(strings.Fields("run "+way.flags), "--bundle", bundle, "c1")...)
				cmd.ExtraFiles = []*os.File{read}
				cmd.Env = append(cmd.Env, way.env)
				// As systemd does it: the process that they are for goes by its ID.
				cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`}, cmd.Args...)
				cmd.Path = "/bin/sh"
				output, err := cmd.Output()
				must.StrHasPrefix(t, "through descriptor 3 ", string(output), must.Sprint(err))
				must.Eq(t, 7, cmd.ProcessState.ExitCode())
				must.Nil(t, n.holder(made.ID))
			})
		}
	}
}

// What a caller has set for its children holds for the next runtime too. Go programs raise their limit of open files.
func TestPassthrough_Limits(t *testing.T) {
	n := newNode(t, "/nonexistent")
	next := n.path("limits")
	runtimetest.WriteFile(t, next, "#!/bin/sh\nulimit -n; ulimit -c; umask; pwd; cat /proc/self/oom_score_adj\n")
	n.configure(next)
	script := "ulimit -Sn 100; ulimit -Sc 0; umask 027; cd /usr; echo 7 >/proc/self/oom_score_adj; exec \"$0\" state c1"
	cmd := exec.Command("/bin/sh", "-c", script, n.path("tranche-runtime"))
	cmd.Env = n.runtime().Env
	must.Eq(t, "100\n0\n0027\n/usr\n7\n", n.must(cmd))
}

// The first runtime that is installed is the one; a caller without a PATH gets one of the usual places.
func TestMain_Runtimes(t *testing.T) {
	next, record := recorder(t)
	n := newNode(t, "")
	content := readFile(t, n.path("config.toml"))
	configure := func(names string) {
		runtimetest.WriteFile(t, n.path("config.toml"), strings.Replace(content, "runtime = ''", "runtimes = ["+names+"]", 1))
	}
	configure(fmt.Sprintf("'/nonexistent/runc', 'no-such-runtime', '%s'", next))
	_ = n.runtime("state", "c1").Run()
	cmdline, _ := record()
	must.StrContains(t, cmdline, next)

	configure("'/nonexistent/runc', 'no-such-runtime'")
	stderr := n.fails(n.runtime("state", "c1"))
	must.StrContains(t, stderr, "/nonexistent/runc")
	must.StrContains(t, stderr, "no-such-runtime")

	configure("'true'")
	cmd := n.runtime("state", "c1")
	cmd.Env = []string{"TRANCHE_CONFIG=" + n.path("config.toml")}
	n.must(cmd)
}

func TestMain_Version(t *testing.T) {
	n := newNode(t, "/nonexistent")
	must.Eq(t, "tranche-runtime version "+version.Version+"\n", n.must(n.runtime(version.RuntimeFlag)))
}
