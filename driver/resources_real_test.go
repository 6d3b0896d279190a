package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/internal/size"
)

// Each option here is tried in a real container.

func TestOption_CPUHardLimit(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("cat /sys/fs/cgroup/cpu.max || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us",
		func(o *spec.TaskConfig) { o.CPUHardLimit, o.CPUCFSPeriod = true, 50000 })
	cfg.Resources.LinuxResources.PercentTicks = 0.25
	_, out := d.run(cfg, "50000")
	must.Eq(t, []string{fmt.Sprint(12500 * goruntime.NumCPU()), "50000"}, strings.Fields(out))
}

func TestOption_SwapAndSwappiness(t *testing.T) {
	d := newTestDriver(t)
	ten := int64(10)
	cfg := d.task("cd /sys/fs/cgroup; cat memory.swap.max || cat memory/memory.memsw.limit_in_bytes memory/memory.swappiness",
		func(o *spec.TaskConfig) {
			o.MemorySwap = "96MiB"
			if !cgroup.Unified() {
				o.MemorySwappiness = &ten
			}
		})
	want := fmt.Sprintf("%d\n10\n", 96*size.MiB)
	if cgroup.Unified() {
		want = fmt.Sprintf("%d\n", 32*size.MiB)
	}
	d.run(cfg, want)
}

func TestOption_PidsLimit(t *testing.T) {
	n := requireNode(t)
	config := n.config()
	config.PidsLimit = 40
	d := newTestDriverWith(t, n, config)
	const script = "cat /sys/fs/cgroup/pids.max || cat /sys/fs/cgroup/pids/pids.max"
	d.run(d.task(script), "40\n")
	d.run(d.task(script, func(o *spec.TaskConfig) { o.PidsLimit = 20 }), "20\n")
}

func TestOption_ShmSize(t *testing.T) {
	d := newTestDriver(t)
	const script = "df -k /dev/shm | tail -n 1 | awk '{print $2}'"
	d.run(d.task(script), "65536\n")
	d.run(d.task(script, func(o *spec.TaskConfig) { o.ShmSize = "96MiB" }), "98304\n")
	d.run(d.task(script, func(o *spec.TaskConfig) { o.ShmSize = "33554432" }), "32768\n")
}

// A task runs on the cores that Nomad has for it: with all that reserved none, or on its own.
func TestOption_Cores(t *testing.T) {
	for _, reserved := range []bool{false, true} {
		t.Run(fmt.Sprintf("reserved %v", reserved), func(t *testing.T) {
			d := newTestDriver(t)
			cfg := d.task("echo up; exec sleep 600")
			dir := makeNomadCgroups(t, cfg, reserved)
			handle := d.start(cfg)
			t.Cleanup(func() { must.NoError(t, d.driver.DestroyTask(cfg.ID, true)) })
			d.stdout(cfg, "up")
			controller := ""
			if !cgroup.Unified() {
				controller = "cpuset"
				must.Eq(t, filepath.Join("/tranche-test", cfg.AllocID+".task"), procCgroup(t, pidOf(t, handle), "memory"))
			}
			want := strings.TrimPrefix(strings.TrimPrefix(dir, cgroup.CpusetRoot), cgroup.Root)
			must.Eq(t, want, procCgroup(t, pidOf(t, handle), controller))
			if reserved {
				var cores unix.CPUSet
				must.NoError(t, unix.SchedGetaffinity(pidOf(t, handle), &cores))
				must.Eq(t, 1, cores.Count())
				must.True(t, cores.IsSet(0))
			}
			result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c",
				"while ! grep -q " + controller + ":" + want + "$ /proc/self/cgroup; do sleep 0.05; done; echo there"}, time.Minute)
			must.NoError(t, err)
			must.Eq(t, "there\n", string(result.Stdout))
		})
	}
}

// makeNomadCgroups makes what a Nomad agent does for a task whose parent it calls tranche-test, and returns the cpuset.
func makeNomadCgroups(t *testing.T, cfg *drivers.TaskConfig, reserved bool) string {
	t.Helper()
	top := filepath.Join(cgroup.CpusetRoot, "tranche-test")
	levels := []string{top, filepath.Join(top, "share")}
	if reserved {
		levels = []string{top, filepath.Join(top, "reserve"), filepath.Join(top, "reserve", cfg.AllocID+".task")}
		cfg.Resources.LinuxResources.CpusetCpus = "0"
	}
	if cgroup.Unified() {
		top = filepath.Join(cgroup.Root, "tranche-test.slice")
		levels = []string{top, filepath.Join(top, "share.slice"), filepath.Join(top, "share.slice", cfg.AllocID+".task.scope")}
	}
	for _, dir := range levels {
		must.NoError(t, os.MkdirAll(dir, 0o755))
		if cgroup.Unified() {
			continue
		}
		for _, name := range []string{"cpuset.mems", "cpuset.cpus"} {
			above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
			must.NoError(t, err)
			must.NoError(t, os.WriteFile(filepath.Join(dir, name), above, 0))
		}
	}
	t.Cleanup(func() { removeCgroups(t, levels) })
	cfg.Resources.LinuxResources.CpusetCgroupPath = levels[len(levels)-1]
	return levels[len(levels)-1]
}

// removeCgroups removes the cgroups, and the parents that the runtime made in other hierarchies.
func removeCgroups(t *testing.T, levels []string) {
	t.Helper()
	others, err := filepath.Glob(filepath.Join(cgroup.Root, "*", "tranche-test"))
	must.NoError(t, err)
	for i := len(levels) - 1; i >= 0; i-- {
		eventually(t, "the end of cgroup "+levels[i], func() bool {
			err := unix.Rmdir(levels[i])
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	}
	for _, dir := range others {
		_ = unix.Rmdir(dir)
	}
}

// procCgroup is the process's cgroup in the controller's hierarchy; "" is version 2's.
func procCgroup(t *testing.T, pid int, controller string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	must.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && parts[1] == controller {
			return parts[2]
		}
	}
	return ""
}

// putCrunOnPath makes crun, as this test's drivers find it, one that runs on this machine: it refuses to where cgroup v2 is
// mounted beside v1, which is nothing of ours. It is hidden from it.
func putCrunOnPath(t *testing.T) {
	t.Helper()
	crun, err := exec.LookPath("crun")
	must.NoError(t, err)
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "crun"), []byte(`#!/bin/sh
exec unshare --mount sh -c 'if [ ! -e /sys/fs/cgroup/cgroup.controllers ] && [ -e /sys/fs/cgroup/unified ]; then
	umount /sys/fs/cgroup/unified
fi; exec "$0" "$@"' `+crun+` "$@"
`), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestOption_Runtime(t *testing.T) {
	n := requireNode(t)
	putCrunOnPath(t)
	// A runtime of the operator's own: runc, with a trace.
	dir := t.TempDir()
	own := filepath.Join(dir, "own-1.0")
	must.NoError(t, os.WriteFile(own, []byte("#!/bin/sh\ntouch "+dir+"/used\nexec runc \"$@\"\n"), 0o755))
	config := n.config()
	config.AllowRuntimes = []string{"crun", own}
	d := newTestDriverWith(t, n, config)
	for _, runtime := range []string{"", "runc", "crun", own} {
		t.Run("runtime "+filepath.Base(runtime), func(t *testing.T) {
			d := d.in(t)
			cfg := d.task("echo up; while [ ! -e /local/go ]; do sleep 0.05; done; exit 6",
				func(o *spec.TaskConfig) { o.Runtime = runtime })
			d.start(cfg)
			d.stdout(cfg, "up")
			// crun keeps a container's state in another file than runc.
			state, err := filepath.Glob("/run/containerd/runc/*/" + naming.ContainerID(cfg) + "/*")
			must.NoError(t, err)
			file := map[bool]string{true: "status", false: "state.json"}[runtime == "crun"]
			must.StrContains(t, strings.Join(state, "\n")+"\n", "/"+file+"\n")
			result, err := d.ExecTask(cfg.ID, []string{"/bin/touch", "/local/go"}, time.Minute)
			must.NoError(t, err)
			must.Zero(t, result.ExitResult.ExitCode)
			must.Eq(t, 6, d.wait(cfg).ExitCode)
			must.NoError(t, d.DestroyTask(cfg.ID, false))
			d.nothingLeft(cfg)
		})
	}
	_, err := os.Stat(filepath.Join(dir, "used"))
	must.NoError(t, err)
}

// What the options ask for holds with crun as it does with runc.
func TestOption_RuntimeCrunTakesTheOptions(t *testing.T) {
	n := requireNode(t)
	putCrunOnPath(t)
	config := n.config()
	config.Runtime = "crun"
	d := newTestDriverWith(t, n, config)
	cfg := d.task(`tty; ulimit -n; cat /proc/self/oom_score_adj /proc/sys/net/core/somaxconn; hostname
		cat /sys/fs/cgroup/pids.max || cat /sys/fs/cgroup/pids/pids.max; tr '\0' ' ' </proc/1/cmdline`, func(o *spec.TaskConfig) {
		o.TTY, o.Init, o.ReadonlyRootfs, o.Hostname = true, true, true, "web"
		o.Ulimit = spec.Pairs{{"nofile": "1000"}}
		o.OOMScoreAdj, o.PidsLimit, o.NetworkMode = 500, 33, network.None
		o.Sysctl = spec.Pairs{{"net.core.somaxconn": "321"}}
	})
	_, out := d.run(cfg, "/.tranche-init")
	must.StrHasPrefix(t, "/dev/pts/0\n1000\n500\n321\nweb\n", strings.ReplaceAll(out, "\r", ""))
	must.StrContains(t, out, "33\r\n")

	for command, want := range map[string]string{"no-such": "the command is not in image",
		"/no/such": "the command is not in image", "/etc/passwd": "not executable for this user"} {
		cfg = d.failing(func(o *spec.TaskConfig) { o.Command, o.Args = command, nil })
		_, _, err := d.StartTask(cfg)
		must.ErrorContains(t, err, want)
		d.nothingLeft(cfg)
	}
}
