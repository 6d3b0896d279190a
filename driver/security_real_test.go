package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// newLenientDriver returns a driver whose operator allows whatever edit says, on a node where a container's own users can
// reach its root filesystem, as they can where /run/containerd is.
func newLenientDriver(t *testing.T, edit func(*spec.Config)) (*testDriver, spec.Config) {
	n := requireNode(t)
	for _, dir := range []string{n.dir, filepath.Dir(n.dir)} {
		must.NoError(t, os.Chmod(dir, 0o711))
	}
	config := n.config()
	edit(&config)
	return newTestDriverWith(t, n, config), config
}

const showStatus = "cat /proc/self/status; echo end"

// capsOf reads the capabilities of a process from its status file, by set and name.
func capsOf(t *testing.T, status string) map[cap.Type][]string {
	t.Helper()
	bits, err := cap.ParseProcPIDStatus(strings.NewReader(status))
	must.NoError(t, err)
	must.MapLen(t, 5, bits)
	all := map[cap.Type][]string{}
	for set, value := range bits {
		all[set], _ = cap.FromBitmap(value)
	}
	return all
}

func TestOption_Capabilities(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) { c.AllowCaps = append(c.AllowCaps, "net_raw", "sys_time") })
	nomads := capabilities.NomadDefaults().Slice(true)
	cases := []struct {
		name      string
		user      string
		add, drop []string
		bounding  []string
		effective []string
	}{
		{"Nomad's by default", "", nil, nil, nomads, nomads},
		{"one more", "", []string{"net_raw"}, nil, append([]string{"CAP_NET_RAW"}, nomads...), append([]string{"CAP_NET_RAW"}, nomads...)},
		{"one only", "", []string{"CAP_SYS_TIME"}, []string{"all"}, []string{"CAP_SYS_TIME"}, []string{"CAP_SYS_TIME"}},
		{"none", "", nil, []string{"all"}, nil, nil},
		{"of a user", "app", []string{"net_bind_service"}, nil, nomads, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task(showStatus, func(o *spec.TaskConfig) { o.CapAdd, o.CapDrop = c.add, c.drop })
			cfg.User = c.user
			_, out := d.run(cfg, "end\n")
			got := capsOf(t, out)
			must.SliceContainsAll(t, c.bounding, got[cap.Bounding])
			must.SliceContainsAll(t, c.effective, got[cap.Effective])
			must.SliceContainsAll(t, c.effective, got[cap.Permitted])
			must.SliceEmpty(t, got[cap.Inheritable])
			must.SliceEmpty(t, got[cap.Ambient])
		})
	}
}

func TestOption_Privileged(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) { c.AllowPrivileged = true })
	device := hostDeviceBeyondTheUsual(t)
	script := fmt.Sprintf("cat /proc/self/status; grep -E ' /sys(/fs/cgroup.*)? ' /proc/mounts; "+
		"test -e %s && echo has the device; [ $(head -c 4 /proc/kcore 2>/dev/null | wc -c) = 4 ] && echo reads kcore; env; echo end", device)

	_, out := d.run(d.task(script, func(o *spec.TaskConfig) { o.Privileged = true }), "end\n")
	own, err := cap.Current()
	must.NoError(t, err)
	must.SliceContainsAll(t, own, capsOf(t, out)[cap.Effective])
	must.StrContains(t, out, "Seccomp:\t0")
	must.StrContains(t, out, " /sys sysfs rw")
	must.StrContains(t, out, "has the device")
	must.StrContains(t, out, noVisibleDevices)

	_, out = d.run(d.task(script), "end\n")
	must.StrContains(t, out, "Seccomp:\t2")
	must.StrContains(t, out, " /sys sysfs ro")
	must.StrNotContains(t, out, "has the device")
	must.StrNotContains(t, out, "reads kcore")
}

// hostDeviceBeyondTheUsual is a device node of the host that no container has by default.
func hostDeviceBeyondTheUsual(t *testing.T) string {
	t.Helper()
	usual := map[string]bool{"/dev/null": true, "/dev/zero": true, "/dev/full": true, "/dev/random": true,
		"/dev/urandom": true, "/dev/tty": true, "/dev/ptmx": true}
	all, err := oci.HostDevices()
	must.NoError(t, err)
	for _, device := range all {
		if !usual[device.Path] && device.Type == "c" {
			return device.Path
		}
	}
	t.Fatal("this machine has no device beyond those that every container has")
	return ""
}

func TestOption_SecurityOpt(t *testing.T) {
	profiles := t.TempDir()
	const noMkdir = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
		{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`
	const noSymlink = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
		{"names": ["symlink", "symlinkat"], "action": "SCMP_ACT_ERRNO"}]}`
	must.NoError(t, os.WriteFile(filepath.Join(profiles, "default.json"), []byte(noMkdir), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(profiles, "named.json"), []byte(noSymlink), 0o600))
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.AllowPrivileged = true
		c.SeccompDir, c.SeccompProfile = profiles, filepath.Join(profiles, "default.json")
	})
	script := "mkdir /tmp/d && echo made; ln -s x /tmp/l && echo linked; " +
		"grep -q ' /proc/sys proc ro' /proc/mounts && echo has read-only paths; " +
		"grep -q ' /proc/timer_list ' /proc/mounts && echo has masked paths; " + showStatus
	const made, linked, filtered, unfiltered = "made", "linked", "Seccomp:\t2", "Seccomp:\t0"
	const readonly, masked = "has read-only paths", "has masked paths"
	cases := []struct {
		name       string
		opts       []string
		want, lack []string
	}{
		{"the node's profile", nil, []string{linked, filtered, "NoNewPrivs:\t0", readonly, masked}, []string{made}},
		{"one of the node's", []string{"seccomp=named.json"}, []string{made, filtered}, []string{linked}},
		{"one of the task's own", []string{"seccomp=local/own.json"}, []string{made, filtered}, []string{linked}},
		{"containerd's", []string{"seccomp=builtin"}, []string{made, linked, filtered}, nil},
		{"none", []string{"seccomp=unconfined"}, []string{made, linked, unfiltered}, nil},
		{"nothing of /proc hidden", []string{"systempaths=unconfined"}, []string{filtered}, []string{readonly, masked}},
		{"no new privileges", []string{"no-new-privileges"}, []string{"NoNewPrivs:\t1"}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task(script, func(o *spec.TaskConfig) { o.SecurityOpt = c.opts })
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "own.json"), []byte(noSymlink), 0o600))
			_, out := d.run(cfg, "end\n")
			for _, want := range c.want {
				must.StrContains(t, out, want)
			}
			for _, lack := range c.lack {
				must.StrNotContains(t, out, lack)
			}
		})
	}

	// A profile that is not there is an error, and leaves nothing.
	cfg := d.failing(func(o *spec.TaskConfig) { o.SecurityOpt = []string{"seccomp=local/none.json"} })
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, `"seccomp=local/none.json"`)
	d.nothingLeft(cfg)
}

func TestOption_Namespaces(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) { c.AllowHostNamespaces = []string{"pid", "ipc", "uts", "cgroup"} })
	kinds := []string{"pid", "ipc", "uts", "cgroup"}
	script := "for n in pid ipc uts cgroup; do readlink /proc/self/ns/$n; done; hostname; ls -d /dev/shm/tranche-*; echo end"
	shared, err := os.CreateTemp("/dev/shm", "tranche-")
	must.NoError(t, err)
	t.Cleanup(func() { shared.Close(); os.Remove(shared.Name()) })
	name, err := os.Hostname()
	must.NoError(t, err)

	_, out := d.run(d.task(script, func(o *spec.TaskConfig) {
		o.NetworkMode, o.CgroupNS = network.None, "private"
	}), "end\n")
	for _, kind := range kinds {
		must.StrNotContains(t, out, ownNamespace(t, kind))
	}
	must.StrNotContains(t, out, shared.Name())

	_, out = d.run(d.task(script, func(o *spec.TaskConfig) {
		o.PidMode, o.IPCMode, o.UTSMode, o.CgroupNS = "host", "host", "host", "host"
	}), "end\n")
	for _, kind := range kinds {
		must.StrContains(t, out, ownNamespace(t, kind))
	}
	must.StrContains(t, out, name+"\n")
	must.StrContains(t, out, shared.Name())
}

// With the host's processes around it, nothing but the driver ends what a task leaves behind.
func TestOption_HostPIDsAreEnded(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) { c.AllowHostNamespaces = []string{"pid"} })
	cfg := d.task("sleep 1000 & echo child $! end", func(o *spec.TaskConfig) { o.PidMode = "host" })
	_, out := d.run(cfg, "end\n")
	var child int
	_, err := fmt.Sscanf(out, "child %d end", &child)
	must.NoError(t, err)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	eventually(t, "the end of the process that the task left", func() bool { return !alive(child) })
	d.nothingLeft(cfg)
}

func ownNamespace(t *testing.T, kind string) string {
	t.Helper()
	link, err := os.Readlink("/proc/self/ns/" + kind)
	must.NoError(t, err)
	return link
}

func TestOption_Devices(t *testing.T) {
	device := hostDeviceBeyondTheUsual(t)
	cdiDir, err := filepath.Abs("spec/testdata/cdi")
	must.NoError(t, err)
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.AllowDevices = []string{device, "vendor.com/class=*"}
		c.CDISpecDirs = []string{cdiDir}
	})
	node, err := oci.DeviceFromPath(device)
	must.NoError(t, err)
	numbers := fmt.Sprintf("%x:%x", node.Major, node.Minor)
	script := "stat -c '%n %t:%T' /dev/mine /dev/cdi-one; head -c 3 /dev/cdi-one | wc -c; " +
		"cat /sys/fs/cgroup/devices/devices.list; env; echo end"
	_, out := d.run(d.task(script, func(o *spec.TaskConfig) {
		o.Devices = []string{device + ":/dev/mine:rw", "vendor.com/class=one"}
	}), "end\n")
	must.StrContains(t, out, "/dev/mine "+numbers+"\n")
	must.StrContains(t, out, "/dev/cdi-one 1:5\n3\n")
	if cgroups.Mode() != cgroups.Unified { // Version 2 has a program in place of a list.
		must.StrContains(t, out, fmt.Sprintf("c %d:%d rw\n", node.Major, node.Minor))
	}
	must.StrContains(t, out, "CDI_DEVICE=one")
	must.StrContains(t, out, noVisibleDevices)

	for _, entry := range []string{"/dev/zero", "nvidia.com/gpu=0", "vendor.com/class=two"} {
		cfg := d.failing(func(o *spec.TaskConfig) { o.Devices = []string{entry} })
		_, _, err := d.StartTask(cfg)
		must.ErrorContains(t, err, `option devices = "`+entry+`"`)
		d.nothingLeft(cfg)
	}
}

func TestOption_DynamicWorkloadUser(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) { c.DynamicWorkloadUsers = true })
	cfg := d.task("id; echo x > /local/f; echo end")
	cfg.User = "nomad-80123"
	_, out := d.run(cfg, "end\n")
	must.StrContains(t, out, "uid=80123 gid=80123")
	must.Eq(t, [2]uint32{80123, 80123}, ownerOf(t, filepath.Join(cfg.TaskDir().LocalDir, "f")))

	// Where the option is off it is a name like any other.
	d = newTestDriver(t)
	cfg = d.failing()
	cfg.User = "nomad-80123"
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, "nomad-80123")
	d.nothingLeft(cfg)
}
