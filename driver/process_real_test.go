package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/ociruntime"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// Each option here is tried in a real container.

func TestOption_GroupAdd(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("id", func(o *spec.TaskConfig) { o.GroupAdd = []string{"extra", "4321"} })
	cfg.User = "nobody"
	_, out := d.run(cfg, "uid=65534(nobody)")
	must.StrContains(t, out, "2000(extra)")
	must.StrContains(t, out, "4321")
}

func TestOption_Hostname(t *testing.T) {
	d := newTestDriver(t)
	for _, mode := range []string{network.Host, network.None} {
		d.run(d.task("hostname", func(o *spec.TaskConfig) { o.Hostname, o.NetworkMode = "web-1.example.org", mode }),
			"web-1.example.org\n")
	}
	own, err := os.Hostname()
	must.NoError(t, err)
	must.NotEq(t, "web-1.example.org", own)
}

// The first process is the init: it passes on signals and exit codes, and reaps processes that their parents left.
func TestOption_Init(t *testing.T) {
	n := requireNode(t)
	for i, name := range []string{"the first that is installed", "tini-static", "catatonit"} {
		t.Run(name, func(t *testing.T) {
			config := n.config()
			if i > 0 {
				path, err := exec.LookPath(name)
				must.NoError(t, err)
				config.InitPath = path
			}
			d := newTestDriverWith(t, n, config)
			cfg := d.task(`tr '\0' ' ' </proc/1/cmdline; trap 'echo asked; exit 5' TERM; echo up
				while :; do sleep 0.05; done`, func(o *spec.TaskConfig) { o.Init = true })
			d.start(cfg)
			must.StrHasPrefix(t, "/.tranche-init"+" -- /bin/sh -c ", d.stdout(cfg, "up\n"))
			must.NoError(t, d.StopTask(cfg.ID, time.Minute, "SIGTERM"))
			must.Eq(t, 5, d.wait(cfg).ExitCode)
			d.stdout(cfg, "asked")

			// sleep waits for nobody: without an init, what its child left would stay a zombie.
			cfg = d.task("sh -c 'sleep 0.1 & exec true'; exec sleep 600", func(o *spec.TaskConfig) { o.Init = true })
			d.start(cfg)
			eventually(t, "one process that sleeps, and no zombie", func() bool {
				out, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "grep -h -E '^(Name|State)' /proc/[0-9]*/status"},
					time.Minute)
				must.NoError(t, err)
				text := string(out.Stdout)
				return strings.Count(text, "\tsleep\n") == 1 && !strings.Contains(text, "zombie")
			})
		})
	}
}

func TestOption_Ulimit(t *testing.T) {
	d := newTestDriver(t)
	d.run(d.task("ulimit -S -n; ulimit -H -n; ulimit -c", func(o *spec.TaskConfig) {
		o.Ulimit = spec.Pairs{{"nofile": "1000:2000"}, {"core": "0"}}
	}), "1000\n2000\n0\n")
}

func TestOption_Sysctl(t *testing.T) {
	d := newTestDriver(t)
	d.run(d.task(`cd /proc/sys; cat net/core/somaxconn kernel/msgmax fs/mqueue/msg_max kernel/domainname
		cat net/ipv4/ip_unprivileged_port_start`, func(o *spec.TaskConfig) {
		o.NetworkMode = network.None
		o.Sysctl = spec.Pairs{{"net.core.somaxconn": "321", "kernel.msgmax": "4321", "fs.mqueue.msg_max": "12",
			"kernel.domainname": "example.org"}}
	}), "321\n4321\n12\nexample.org\n0\n")
}

func TestOption_OOMScoreAdj(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.OOMScoreAdj = 300
	d := newTestDriverWith(t, n, config)
	d.run(d.task("cat /proc/self/oom_score_adj", func(o *spec.TaskConfig) { o.OOMScoreAdj = 500 }), "500\n")
	d.run(d.task("cat /proc/self/oom_score_adj"), "300\n")
}

func TestOption_ReadonlyRootfs(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("touch /x 2>&1; touch /local/y && echo mounts are writable", func(o *spec.TaskConfig) { o.ReadonlyRootfs = true })
	_, out := d.run(cfg, "mounts are writable")
	must.StrContains(t, out, "Read-only file system")
}

// What a terminal shows reaches Nomad without this plugin.
func TestOption_TTY(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task(`tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal $TERM; echo error >&2
		while [ ! -e /local/go ]; do sleep 0.05; done; echo after; exit 4`, func(o *spec.TaskConfig) { o.TTY = true })
	handle := d.start(cfg)
	out := d.stdout(cfg, "error")
	must.StrContains(t, out, "/dev/pts/0")
	must.StrContains(t, out, "terminal xterm")

	result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "[ -t 1 ] || echo no terminal"}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, "no terminal\n", string(result.Stdout))

	d.driver.Shutdown()
	touch(t, filepath.Join(cfg.TaskDir().LocalDir, "go"))
	d.stdout(cfg, "after")
	d = newTestDriverWith(t, d.node, d.node.config())
	must.NoError(t, d.RecoverTask(handle))
	must.Eq(t, 4, d.wait(cfg).ExitCode)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
}

// stdin stays open without anybody who holds it but the shim: the task reads until somebody writes.
func TestOption_Interactive(t *testing.T) {
	for _, tty := range []bool{false, true} {
		t.Run(fmt.Sprintf("tty %v", tty), func(t *testing.T) {
			d := newTestDriver(t)
			cfg := d.task("echo up; read line; echo end of stdin", func(o *spec.TaskConfig) { o.Interactive, o.TTY = true, tty })
			handle := d.start(cfg)
			d.stdout(cfg, "up")
			entries, err := os.ReadDir(cfg.TaskDir().Dir)
			must.NoError(t, err)
			for _, entry := range entries {
				must.StrNotContains(t, entry.Name(), "fifo")
			}
			d = d.restart()
			must.NoError(t, d.RecoverTask(handle))
			t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
			// Only a process whose stdin is open is still there to be asked.
			result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "readlink /proc/1/fd/0"}, time.Minute)
			must.NoError(t, err)
			must.StrContains(t, string(result.Stdout), map[bool]string{false: "pipe:", true: "/dev/pts/0"}[tty])
			if tty {
				must.NoError(t, d.StopTask(cfg.ID, 0, "SIGKILL"))
				return
			}
			_, err = d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "echo line >/proc/1/fd/0"}, time.Minute)
			must.NoError(t, err)
			d.stdout(cfg, "end of stdin")
			must.Zero(t, d.wait(cfg).ExitCode)
		})
	}
	d := newTestDriver(t)
	d.run(d.task("read line; echo end of stdin"), "end of stdin") // nothing to read without the option
}

func TestOption_DisableLogCollection(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.DisableLogCollection = true
	d := newTestDriverWith(t, n, config)
	capabilities, err := d.driver.Capabilities()
	must.NoError(t, err)
	must.True(t, capabilities.DisableLogCollection)
	for name, want := range map[string]string{"plain": "/dev/null\n", "interactive": "pipe:", "tty": "/dev/pts/0\n"} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.newTask("echo $(readlink /proc/$$/fd/1) >/local/stdout; echo nobody reads this; exit 3", false,
				func(o *spec.TaskConfig) { o.Interactive, o.TTY = name == "interactive", name == "tty" })
			// Nomad names pipes that it does not make.
			cfg.StdoutPath = filepath.Join(cfg.TaskDir().LogDir, ".no.stdout.fifo")
			cfg.StderrPath = filepath.Join(cfg.TaskDir().LogDir, ".no.stderr.fifo")
			d.start(cfg)
			must.Eq(t, 3, d.wait(cfg).ExitCode)
			data, err := os.ReadFile(filepath.Join(cfg.TaskDir().LocalDir, "stdout"))
			must.NoError(t, err)
			must.StrContains(t, string(data), want)
		})
	}
}

func TestOption_LabelsAndAnnotations(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.ExtraLabels = []string{"job_*", "task_group_name"}
	d := newTestDriverWith(t, n, config)
	cfg := d.task("true", func(o *spec.TaskConfig) {
		o.Labels = spec.Pairs{{"com.example/team": "shop"}}
		o.Annotations = spec.Pairs{{"com.example/note": "hello"}}
	})
	d.start(cfg)
	container, err := d.client.LoadContainer(d.ctx, naming.ContainerID(cfg))
	must.NoError(t, err)
	labels, err := container.Labels(d.ctx)
	must.NoError(t, err)
	for key, want := range map[string]string{"com.example/team": "shop", naming.TaskID: cfg.ID,
		"com.hashicorp.nomad.job_id": "job", "com.hashicorp.nomad.task_group_name": "group"} {
		must.Eq(t, want, labels[key])
	}
	spec, err := container.Spec(d.ctx)
	must.NoError(t, err)
	must.Eq(t, "hello", spec.Annotations["com.example/note"])
	d.wait(cfg)
}

// The job's kill_signal, else the image's STOPSIGNAL, else SIGTERM.
func TestOption_StopSignal(t *testing.T) {
	d := newTestDriver(t)
	image := d.node.push(t, "stop-signal:1", func(c *v1.Config) { c.StopSignal = "SIGUSR2" })
	cases := []struct {
		name, image, killSignal string
		want                    int
	}{
		{"the job's", image, "SIGUSR1", int(unix.SIGUSR1)},
		{"the image's", image, "", int(unix.SIGUSR2)},
		{"the usual", d.node.reference, "", int(unix.SIGTERM)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task("for s in USR1 USR2 TERM; do trap \"exit $(kill -l $s)\" $s; done; echo up; while :; do sleep 0.05; done",
				func(o *spec.TaskConfig) { o.Image = c.image })
			d.start(cfg)
			d.stdout(cfg, "up")
			must.NoError(t, d.StopTask(cfg.ID, time.Minute, c.killSignal))
			must.Eq(t, c.want, d.wait(cfg).ExitCode)
		})
	}
}

func TestEvents(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("trap '' TERM; echo up; while :; do sleep 0.05; done")
	handle := d.start(cfg)
	d.stdout(cfg, "up")
	must.NoError(t, d.StopTask(cfg.ID, 100*time.Millisecond, ""))
	for _, want := range []string{
		fmt.Sprintf("Creating container %s of image %s (sha256:", naming.ContainerID(cfg), d.node.reference),
		fmt.Sprintf("Started: PID %d, image %s, runtime %s", pidOf(t, handle), d.node.reference, ociruntime.Runc),
		"The task did not end within 100ms of its stop signal, and is killed",
	} {
		eventually(t, "the event "+want, func() bool { return strings.Contains(strings.Join(d.events.all(), "\n"), want) })
	}
}

func TestBadInput_ProcessOptionsLeaveNothing(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.AllowRuntimes = []string{"io.containerd.kata.v2", "no-such-runtime"}
	d := newTestDriverWith(t, n, config)
	ten := int64(10)
	cases := []struct {
		name string
		edit func(*spec.TaskConfig)
		errs []string
	}{
		{"a group that the image does not have", func(o *spec.TaskConfig) { o.GroupAdd = []string{"extra", "strangers"} },
			[]string{`option group_add = ["extra" "strangers"]`, "strangers", "/etc/group"}},
		{"more open files than the kernel can have", func(o *spec.TaskConfig) { o.Ulimit = spec.Pairs{{"nofile": "9999999999999"}} },
			[]string{"option ulimit", `"9999999999999"`, "lower it"}},
		{"a parameter of the node's network", func(o *spec.TaskConfig) { o.Sysctl = spec.Pairs{{"net.core.somaxconn": "1"}} },
			[]string{`option sysctl: "net.core.somaxconn" = "1"`, "the node's network"}},
		{"less swap than memory", func(o *spec.TaskConfig) { o.MemorySwap = "32MiB" },
			[]string{`option memory_swap = "32MiB"`, "64 MiB"}},
		{"a limit of nobody knows what", func(o *spec.TaskConfig) { o.CPUHardLimit = true },
			[]string{"option cpu_hard_limit = true"}},
		{"a shim that is not installed", func(o *spec.TaskConfig) { o.Runtime = "io.containerd.kata.v2" },
			[]string{`runtime "io.containerd.kata.v2" is not installed`, "containerd-shim-kata-v2", "PATH"}},
		{"a runtime that is not installed", func(o *spec.TaskConfig) { o.Runtime = "no-such-runtime" },
			[]string{`option runtime = "no-such-runtime": it is not installed on this node`}},
		{"swappiness beyond bounds", func(o *spec.TaskConfig) { ten = 200; o.MemorySwappiness = &ten },
			[]string{"option memory_swappiness = 200"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.failing(c.edit)
			_, _, err := d.StartTask(cfg)
			must.Error(t, err)
			for _, want := range c.errs {
				must.ErrorContains(t, err, want)
			}
			d.nothingLeft(cfg)
			shims, err := d.node.containerd.Shims()
			must.NoError(t, err)
			must.SliceEmpty(t, shims)
		})
	}
}
