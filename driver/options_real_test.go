package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/network/networktest"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/size"
)

// Each option here is tried in a real container.

func TestOption_User(t *testing.T) {
	d := newTestDriver(t)
	withUSER := d.node.push(t, "with-user:1", func(c *v1.Config) { c.User = "app" })
	cases := []struct {
		name  string
		image string
		user  string
		want  string
	}{
		{"root by default", d.node.reference, "", "uid=0(root) gid=0(root)"},
		{"by name, with its groups", d.node.reference, "app", "uid=1000(app) gid=1000(app) groups=1000(app),2000(extra)"},
		{"by number", d.node.reference, "1234:2000", "uid=1234 gid=2000(extra)"},
		{"the image's", withUSER, "", "uid=1000(app)"},
		{"the task's over the image's", withUSER, "nobody", "uid=65534(nobody)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task("id", func(o *spec.TaskConfig) { o.Image = c.image })
			cfg.User = c.user
			d.run(cfg, c.want)
		})
	}
}

func TestOption_ImageDefaults(t *testing.T) {
	d := newTestDriver(t)
	image := d.node.push(t, "defaults:1", func(c *v1.Config) {
		c.Entrypoint = []string{"/bin/sh", "-c", `echo "$A $B in $PWD with $0 $1"`}
		c.Cmd = []string{"zero", "one"}
		c.Env = append(c.Env, "A=image", "B=image")
		c.WorkingDir = "/etc"
		c.StopSignal = "SIGUSR2"
	})
	set := func(edit func(*spec.TaskConfig)) func(*spec.TaskConfig) {
		return func(o *spec.TaskConfig) { *o = spec.TaskConfig{Image: image}; edit(o) }
	}
	cfg := d.task("", set(func(*spec.TaskConfig) {}))
	d.run(cfg, "image image in /etc with zero one")

	cfg = d.task("", set(func(o *spec.TaskConfig) { o.Args, o.WorkDir = []string{"null", "eins"}, "/tmp" }))
	cfg.Env["B"] = "task"
	d.run(cfg, "image task in /tmp with null eins")

	cfg = d.task("", set(func(o *spec.TaskConfig) { o.Entrypoint = []string{"/bin/echo", "only", "this"} }))
	d.run(cfg, "only this\n")

	cfg = d.task("", set(func(o *spec.TaskConfig) {
		o.Entrypoint = []string{"/bin/sh", "-c", "trap 'exit 12' USR2; echo up; while :; do sleep 0.05; done"}
	}))
	d.start(cfg)
	d.stdout(cfg, "up")
	must.NoError(t, d.StopTask(cfg.ID, time.Minute, ""))
	must.Eq(t, 12, d.wait(cfg).ExitCode)
}

func TestOption_TaskDirectoriesAndVolumes(t *testing.T) {
	d := newTestDriver(t)
	volume := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(volume, "f"), []byte("from the volume"), 0o644))
	cfg := d.task(`
		echo $NOMAD_ALLOC_DIR $NOMAD_TASK_DIR $NOMAD_SECRETS_DIR
		echo a > $NOMAD_ALLOC_DIR/a; echo l > $NOMAD_TASK_DIR/l; cat $NOMAD_SECRETS_DIR/s /vol/f
		echo x > /vol/f || echo readonly`)
	cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: "/vol", Readonly: true}}
	must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().SecretsDir, "s"), []byte("secret\n"), 0o600))
	_, out := d.run(cfg, "readonly")
	must.Eq(t, "/alloc /local /secrets\nsecret\nfrom the volumereadonly\n", out)
	for file, want := range map[string]string{
		filepath.Join(cfg.TaskDir().SharedAllocDir, "a"): "a\n",
		filepath.Join(cfg.TaskDir().LocalDir, "l"):       "l\n",
	} {
		data, err := os.ReadFile(file)
		must.NoError(t, err)
		must.Eq(t, want, string(data))
	}
}

func TestOption_Resources(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task(`
		cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
		cat /sys/fs/cgroup/cpu.weight /sys/fs/cgroup/cpu/cpu.shares 2>/dev/null
		cat /sys/fs/cgroup/cpuset.cpus /sys/fs/cgroup/cpuset/cpuset.cpus 2>/dev/null; echo end`)
	cfg.Resources.LinuxResources.CPUShares = 512
	cfg.Resources.LinuxResources.CpusetCpus = "0"
	_, out := d.run(cfg, "end")
	lines := strings.Split(out, "\n")
	must.Eq(t, fmt.Sprint(64*size.MiB), lines[0])
	must.SliceContains(t, []string{"512", "20"}, lines[1]) // v1; v2's weight for 512 shares
	must.Eq(t, "0", lines[2])
}

func TestOption_UnlimitedMemory(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("head -c 200m /dev/zero | tail -c 200m | wc -c")
	cfg.Resources.NomadResources.Memory.MemoryMaxMB = -1
	result, _ := d.run(cfg, fmt.Sprint(200*size.MiB))
	must.True(t, result.Successful())
}

func TestOption_OOM(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("tail -c 200m /dev/zero")
	d.start(cfg)
	result := d.wait(cfg)
	must.True(t, result.OOMKilled)
	must.NotEq(t, 0, result.ExitCode)
	must.ErrorContains(t, result.Err, "limit of 64 MiB")
	eventually(t, "the event", func() bool { return strings.Contains(strings.Join(d.events.all(), "\n"), "Out of memory") })

	cfg = d.task("exit 1")
	d.start(cfg)
	result = d.wait(cfg)
	must.False(t, result.OOMKilled)
	must.NoError(t, result.Err)
}

// A service that lost a child, and was stopped later, did not run out of memory.
func TestOption_OOMOfAChild(t *testing.T) {
	// The shim sees such children from the start of the task on, which the child must not be ahead of.
	const lossy = "trap 'tail -c 200m /dev/zero; echo lost' USR1; echo ready; while :; do sleep 0.05; done"
	for name, c := range map[string]struct {
		script string
		code   int
	}{
		"stopped": {"trap 'exit 3' TERM; " + lossy, 3},
		"killed":  {"trap '' TERM; " + lossy, 137},
	} {
		t.Run(name, func(t *testing.T) {
			d := newTestDriver(t)
			cfg := d.task(c.script)
			d.start(cfg)
			d.stdout(cfg, "ready")
			must.NoError(t, d.SignalTask(cfg.ID, "SIGUSR1"))
			d.stdout(cfg, "lost")
			eventually(t, "the event", func() bool { return strings.Contains(strings.Join(d.events.all(), "\n"), "Out of memory") })
			must.NoError(t, d.StopTask(cfg.ID, time.Second, "SIGTERM"))
			result := d.wait(cfg)
			must.Eq(t, c.code, result.ExitCode)
			must.False(t, result.OOMKilled)
			must.NoError(t, result.Err)
		})
	}
}

// The kernel counts on while nobody listens for events.
func TestOption_OOMWhileThePluginIsDown(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task(`
		while [ ! -e /local/go ]; do sleep 0.05; done
		tail -c 200m /dev/zero
		touch /local/done
		while [ ! -e /local/end ]; do sleep 0.05; done
		exit 3`)
	handle := d.start(cfg)
	d.driver.Shutdown()
	local := cfg.TaskDir().LocalDir
	touch(t, filepath.Join(local, "go"))
	eventually(t, "the end of the greedy process", func() bool {
		_, err := os.Stat(filepath.Join(local, "done"))
		return err == nil
	})
	d = newTestDriverWith(t, d.node, d.node.config())
	must.NoError(t, d.RecoverTask(handle))
	t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
	touch(t, filepath.Join(local, "end"))
	result := d.wait(cfg)
	must.Eq(t, 3, result.ExitCode)
	must.True(t, result.OOMKilled)
}

func TestOption_Network(t *testing.T) {
	d := newTestDriver(t)
	script := "ls /sys/class/net | tr '\\n' ' '; readlink /proc/self/ns/net; echo end"
	own, err := os.Readlink("/proc/self/ns/net")
	must.NoError(t, err)

	cfg := d.task(script+"; hostname; cat /etc/hosts", func(o *spec.TaskConfig) { o.NetworkMode = network.Host })
	_, out := d.run(cfg, "end\n")
	must.StrContains(t, out, own)

	cfg = d.task(script, func(o *spec.TaskConfig) { o.NetworkMode = network.None })
	_, out = d.run(cfg, "end\n")
	must.StrNotContains(t, out, own)
	must.StrHasPrefix(t, "lo ", out)

	cfg = d.task(script + "; cat /etc/hosts; hostname")
	cfg.NetworkIsolation = &drivers.NetworkIsolationSpec{
		Mode: drivers.NetIsolationModeGroup, Path: networktest.Namespace(t),
		HostsConfig: &drivers.HostsConfig{Hostname: "web-1", Address: "172.26.64.2"},
	}
	_, out = d.run(cfg, "web-1\n")
	must.StrNotContains(t, out, own)
	must.StrContains(t, out, "172.26.64.2 web-1")
}

func TestBadInput_LeavesNothing(t *testing.T) {
	d := newTestDriver(t)
	noCommand := d.node.push(t, "no-command:1", func(c *v1.Config) { c.Cmd = nil })
	noUser := d.node.push(t, "no-user:1", func(c *v1.Config) { c.User = "nobody-here" })
	cases := []struct {
		name string
		edit func(*spec.TaskConfig)
		user string
		errs []string
	}{
		{"a command that is not in the image", func(o *spec.TaskConfig) { o.Command, o.Args = "no-such", nil }, "",
			[]string{"the command is not in image", "no-such", "options command and entrypoint"}},
		{"a path that is not in the image", func(o *spec.TaskConfig) { o.Command, o.Args = "/no/such", nil }, "",
			[]string{"the command is not in image", "/no/such"}},
		{"a command that is no program", func(o *spec.TaskConfig) { o.Command, o.Args = "/etc/passwd", nil }, "",
			[]string{"not executable", "/etc/passwd"}},
		{"nothing to run", func(o *spec.TaskConfig) { *o = spec.TaskConfig{Image: noCommand} }, "",
			[]string{"has neither an entrypoint nor a command", "option command"}},
		{"an unknown user", func(*spec.TaskConfig) {}, "stranger", []string{"stranger", "/etc/passwd"}},
		{"an unknown group", func(*spec.TaskConfig) {}, "app:strangers", []string{"app:strangers", "/etc/group"}},
		{"an image with an unknown user", func(o *spec.TaskConfig) { o.Image = noUser }, "",
			[]string{"the image's USER", "nobody-here"}},
		{"a runtime that is not allowed", func(o *spec.TaskConfig) { o.Runtime = "/bin/sh" }, "",
			[]string{`option runtime = "/bin/sh"`, "allow_runtimes"}},
		{"a network mode that is not known", func(o *spec.TaskConfig) { o.NetworkMode = "wifi" }, "",
			[]string{`option network_mode = "wifi"`, `"host", "bridge" or "none"`}},
		{"bridge without a group's network", func(o *spec.TaskConfig) { o.NetworkMode = "bridge" }, "",
			[]string{"network { mode = \"bridge\" }"}},
		{"a relative work_dir", func(o *spec.TaskConfig) { o.WorkDir = "here" }, "",
			[]string{`option work_dir = "here"`, "absolute path"}},
		{"a timeout that is none", func(o *spec.TaskConfig) { o.ImagePullTimeout = "soon" }, "",
			[]string{`option image_pull_timeout = "soon"`, "5m"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.failing(c.edit)
			cfg.User = c.user
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
