package driver

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/image-spec/identity"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/network"
	"github.com/tranche-gpu/tranche/driver/network/networktest"
	"github.com/tranche-gpu/tranche/driver/recoverable"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/userns"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/internal/size"
)

// newUsernsDriver returns a driver with host IDs for three containers.
func newUsernsDriver(t *testing.T) (*testDriver, spec.Config) {
	return newLenientDriver(t, func(c *spec.Config) { c.UsernsRange = "231072:196608" })
}

func ownUsers(o *spec.TaskConfig) { o.Userns = userns.Auto }

func TestOption_Userns(t *testing.T) {
	d, _ := newUsernsDriver(t)
	group := &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: networktest.Namespace(t)}
	for mode, isolation := range map[string]*drivers.NetworkIsolationSpec{
		network.Host: nil, network.None: nil, network.Bridge: group,
	} {
		t.Run(mode, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task(`cat /proc/self/uid_map /proc/self/gid_map; readlink /proc/self/ns/user; id
				echo x > /local/l; echo x > /alloc/a; cat /secrets/s; echo x > /etc/new; mkdir /new && echo writable root
				ls /sys/class/net; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null
				cat /proc/self/status; echo end`, ownUsers, func(o *spec.TaskConfig) {
				o.NetworkMode = mode
				o.CgroupNS = map[string]string{network.None: "private"}[mode] // Each is tried once.
			})
			cfg.NetworkIsolation = isolation
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().SecretsDir, "s"), []byte("the secret\n"), 0o600))
			_, out := d.run(cfg, "end\n")
			fields := strings.Fields(out)
			must.Eq(t, []string{"0", "231072", "65536", "0", "231072", "65536"}, fields[:6])
			must.StrNotContains(t, out, ownNamespace(t, "user"))
			must.StrContains(t, out, "uid=0(root) gid=0(root)")
			must.StrContains(t, out, "the secret\n")
			must.StrContains(t, out, "writable root\n")
			must.StrContains(t, out, "lo\n")
			must.StrContains(t, out, "67108864\n")
			must.StrContains(t, out, "Seccomp:\t2")
			for _, file := range []string{
				filepath.Join(cfg.TaskDir().LocalDir, "l"), filepath.Join(cfg.TaskDir().SharedAllocDir, "a"),
			} {
				must.Eq(t, [2]uint32{231072, 231072}, ownerOf(t, file), must.Sprint(file))
			}
			must.NoError(t, d.DestroyTask(cfg.ID, false))
			d.nothingLeft(cfg)
		})
	}
}

// Outside the host's network every user may listen on every port.
func TestOption_UsernsLowPorts(t *testing.T) {
	d, _ := newUsernsDriver(t)
	group := &drivers.NetworkIsolationSpec{Mode: drivers.NetIsolationModeGroup, Path: networktest.Namespace(t)}
	for mode, isolation := range map[string]*drivers.NetworkIsolationSpec{network.None: nil, network.Bridge: group} {
		for _, user := range []string{"", "nobody"} {
			t.Run(mode+" "+user, func(t *testing.T) {
				d := d.in(t)
				cfg := d.task("timeout 1 nc -l -p 80 127.0.0.1; echo $?; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; echo end", ownUsers,
					func(o *spec.TaskConfig) { o.NetworkMode = mode })
				cfg.User, cfg.NetworkIsolation = user, isolation
				_, out := d.run(cfg, "end\n")
				must.Eq(t, "143\n0\nend\n", out, must.Sprint("nc did not listen until it was ended"))
			})
		}
	}
	own, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	must.NoError(t, err)
	must.Eq(t, "1024\n", string(own), must.Sprint("the host's network was changed"))
}

func TestOption_UsernsOfAUser(t *testing.T) {
	d, _ := newUsernsDriver(t)
	cfg := d.task("id; echo x > /local/l; cat /etc/passwd >/dev/null && echo end", ownUsers)
	cfg.User = "app"
	_, out := d.run(cfg, "end\n")
	must.StrContains(t, out, "uid=1000(app) gid=1000(app)")
	must.Eq(t, [2]uint32{232072, 232072}, ownerOf(t, filepath.Join(cfg.TaskDir().LocalDir, "l")))
}

// A dynamic user is the same in the namespace and outside.
func TestOption_UsernsOfADynamicUser(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.UsernsRange, c.DynamicWorkloadUsers = "231072:65536", true
	})
	cfg := d.task("id; echo x > /local/l; echo end", ownUsers)
	cfg.User = "nomad-80123"
	_, out := d.run(cfg, "end\n")
	must.StrContains(t, out, "uid=80123 gid=80123")
	must.Eq(t, [2]uint32{80123, 80123}, ownerOf(t, filepath.Join(cfg.TaskDir().LocalDir, "l")))
}

// A program can open what it writes to again, as those do whose image links their logs to /dev/stdout.
func TestOption_UsernsOpensItsStreams(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.UsernsRange, c.DynamicWorkloadUsers = "231072:196608", true
	})
	const opens = "echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin"
	for _, user := range []string{"", "app", "nomad-80123"} {
		t.Run(user, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task(opens+"; echo end; sleep 1000", ownUsers)
			cfg.User = user
			d.start(cfg)
			must.Eq(t, "out\nend\n", d.stdout(cfg, "end\n"))
			d.log(cfg, "stderr", "err\n")
			result, err := d.ExecTask(cfg.ID, []string{"/bin/sh", "-c", opens}, time.Minute)
			must.NoError(t, err)
			must.Eq(t, "out\nerr\n", string(result.Stdout)+string(result.Stderr))
			must.NoError(t, d.DestroyTask(cfg.ID, true))
		})
	}
}

// firstIDs starts a task that stays, and returns it with the first of its host IDs.
func (d *testDriver) firstIDs() (*drivers.TaskConfig, string) {
	d.t.Helper()
	cfg := d.task("cat /proc/self/uid_map; echo end; sleep 1000", ownUsers)
	d.start(cfg)
	return cfg, strings.Fields(d.stdout(cfg, "end\n"))[1]
}

func TestOption_UsernsNoTwoShareIDs(t *testing.T) {
	d, config := newUsernsDriver(t)
	first, ids := d.firstIDs()
	must.Eq(t, "231072", ids)
	second, ids := d.firstIDs()
	must.Eq(t, "296608", ids)

	// A later plugin process knows of them from containerd alone.
	d.driver.Shutdown()
	d = newTestDriverWith(t, d.node, config)
	third, ids := d.firstIDs()
	must.Eq(t, "362144", ids)
	result, err := d.ExecTask(third.ID, []string{"cat", "/proc/self/uid_map"}, time.Minute)
	must.NoError(t, err)
	must.StrContains(t, string(result.Stdout), ids)

	fourth := d.failing(ownUsers)
	_, _, err = d.StartTask(fourth)
	must.ErrorContains(t, err, "231072:196608, are in use")
	must.True(t, recoverable.Is(err))
	d.nothingLeft(fourth)

	must.NoError(t, d.driver.DestroyTask(first.ID, true))
	_, ids = d.firstIDs()
	must.Eq(t, "231072", ids)
	for _, cfg := range []*drivers.TaskConfig{second, third} {
		must.NoError(t, d.driver.DestroyTask(cfg.ID, true))
	}
}

// What a task has left in its directories follows it to the IDs of its next run.
func TestOption_UsernsFilesOfAnEarlierRun(t *testing.T) {
	d, _ := newUsernsDriver(t)
	_, ids := d.firstIDs() // Another task has taken the IDs of the earlier run meanwhile.
	must.Eq(t, "231072", ids)
	cfg := d.task("cat /local/f; echo end", ownUsers, func(o *spec.TaskConfig) { o.CapDrop = []string{"all"} })
	file := filepath.Join(cfg.TaskDir().LocalDir, "f")
	must.NoError(t, os.WriteFile(file, []byte("of the first run\n"), 0o600))
	must.NoError(t, os.Chown(file, 231072, 231072))
	_, out := d.run(cfg, "end\n")
	must.StrContains(t, out, "of the first run\n")
	must.Eq(t, [2]uint32{296608, 296608}, ownerOf(t, file))
}

// A device has the task's name for it, and is not the host's of that name.
func TestOption_UsernsDevices(t *testing.T) {
	other := hostDeviceBeyondTheUsual(t)
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.UsernsRange, c.AllowDevices = "231072:65536", []string{"/dev/zero", "/dev/full"}
	})
	cfg := d.task("stat -c '%t:%T' "+other+" /dev/full; head -c 3 "+other+" | wc -c; echo end", ownUsers,
		func(o *spec.TaskConfig) { o.Devices = []string{"/dev/zero:" + other, "/dev/full"} })
	_, out := d.run(cfg, "end\n")
	must.Eq(t, "1:5\n1:7\n3\nend\n", out)
}

func TestOption_UsernsWithoutIDs(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	nodes := userns.NodeFiles
	userns.NodeFiles = userns.SubIDFiles{Users: none, Groups: none} // Whatever this machine sets aside.
	t.Cleanup(func() { userns.NodeFiles = nodes })
	d := newTestDriver(t)
	cfg := d.failing(ownUsers)
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, `userns_mode = "auto"`)
	must.ErrorContains(t, err, "userns_range")
	d.nothingLeft(cfg)
}

// The processes of a container write the accounting of their claim, whoever they are on the host. What the driver mounts may come from
// where nothing may be executed, as /run under systemd.
func TestOption_UsernsWithAFraction(t *testing.T) {
	sockets := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", sockets, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(sockets, unix.MNT_DETACH)) })
	d, config := newLenientDriver(t, func(c *spec.Config) {
		gpuNode(t, c)
		file := filepath.Join(c.DriverRoot, "etc/cdi/gpu.json")
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		more := `"mounts": [{"hostPath": "` + sockets + `", "containerPath": "/run/driver", "options": ["rw", "nosuid", "nodev", "bind"]}, `
		must.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), `"mounts": [`, more, 1)), 0o644))
		c.UsernsRange = "231072:65536"
	})
	ledger, err := claim.Open(claim.Options{StateDir: config.StateDir, RunDir: config.RunDir})
	must.NoError(t, err)
	_, token, err := ledger.Reserve(d.ctx, claim.Request{
		GPU:    claim.GPU{UUID: testGPU, Index: 0, Name: "NVIDIA H200", ContextBytes: 300 * size.MiB},
		Slices: []string{testGPU + "/slice-000"}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
	})
	must.NoError(t, err)
	cfg := d.task(`cd /.tranche/claims/*; head -c 8 usage > /tmp/head
		dd if=/tmp/head of=usage bs=1 conv=notrunc 2>/dev/null && echo wrote usage
		echo x 2>/dev/null >> limit || echo kept limit; touch x 2>/dev/null || echo kept directory
		ls -d /run/driver
		tail -n 1 `+testLibDir+`/libcuda.so.1; : < /dev/nvidia0 && echo opened the GPU; cat /proc/self/uid_map; echo end`,
		ownUsers)
	cfg.DeviceEnv = map[string]string{token.EnvName(): token.Reveal()}
	_, out := d.run(cfg, "end\n")
	for _, want := range []string{"wrote usage", "kept limit", "kept directory", "/run/driver", "shadow libcuda", "opened the GPU", "231072"} {
		must.StrContains(t, out, want)
	}
}

// A volume that is mounted with restrictions on the host can be shown read-only.
func TestOption_UsernsReadonlyVolume(t *testing.T) {
	d, _ := newUsernsDriver(t)
	volume := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", volume, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(volume, unix.MNT_DETACH)) })
	must.NoError(t, os.WriteFile(filepath.Join(volume, "f"), []byte("from the volume\n"), 0o644))
	cfg := d.task("cat /vol/f; touch /vol/g 2>/dev/null || echo readonly; echo end", ownUsers)
	cfg.Mounts = []*drivers.MountConfig{{HostPath: volume, TaskPath: "/vol", Readonly: true}}
	_, out := d.run(cfg, "end\n")
	must.Eq(t, "from the volume\nreadonly\nend\n", out)
}

// The container's root can write to what the driver makes for its volumes, and what is there already keeps its owner.
func TestOption_UsernsMadeDirectories(t *testing.T) {
	d, _ := newLenientDriver(t, func(c *spec.Config) {
		c.UsernsRange, c.Volumes.Enabled, c.VolumeDir = "231072:196608", true, filepath.Join(t.TempDir(), "volumes")
	})
	host := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(host, "old"), 0o755))
	image := d.node.pushFiles(t, "userns-volume", nil, images.File{Path: "srv/f", Content: "from the image", Owner: 1000})
	cfg := d.task(`for dir in /a /b /c /named /bare; do touch $dir/new && stat -c '%n %u' $dir; done
		stat -c '%n %u' /named/f /alloc/a /old; touch /alloc/a/new; echo end`, ownUsers,
		func(o *spec.TaskConfig) {
			o.Image = image
			o.Volumes = []string{"../alloc/a/b/c:/a", "local/b:/b", host + "/new/c:/c", host + "/old:/old", "userns-named:/srv",
				"userns-named:/named", "userns-bare:/bare:nocopy"}
		})
	_, out := d.run(cfg, "end\n")
	must.Eq(t, "/a 0\n/b 0\n/c 0\n/named 0\n/bare 0\n/named/f 1000\n/alloc/a 0\n/old 65534\nend\n", out)
	must.Eq(t, [2]uint32{231072, 231072}, ownerOf(t, filepath.Join(host, "new")))
	must.Eq(t, [2]uint32{0, 0}, ownerOf(t, filepath.Join(host, "old")))
	must.FileExists(t, filepath.Join(cfg.TaskDir().SharedAllocDir, "a/new"))
}

// A plugin that dies while it gives an image's files to a container's IDs leaves a copy that is not finished.
func TestOption_UsernsUnfinishedCopy(t *testing.T) {
	d, config := newUsernsDriver(t)
	d.run(d.task("echo end"), "end\n") // The image is there now.
	image, err := d.client.GetImage(d.ctx, d.node.reference)
	must.NoError(t, err)
	layers, err := image.RootFS(d.ctx)
	must.NoError(t, err)
	chain := identity.ChainID(layers).String()
	ids := userns.Range{First: 500000, Count: userns.PerContainer} // Of which no other test has made a finished copy.
	config.UsernsRange = ids.String()
	d = newTestDriverWith(t, d.node, config)
	left, err := userns.UnfinishedCopy(chain, ids.Mappings())
	must.NoError(t, err)
	snapshotter := d.client.SnapshotService(spec.DefaultSnapshotter)
	_, err = snapshotter.Prepare(d.ctx, left, chain, snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "x"}))
	must.NoError(t, err)

	_, out := d.run(d.task("cat /proc/self/uid_map; echo end", ownUsers), "end\n")
	must.StrContains(t, out, "500000")
	_, err = snapshotter.Stat(d.ctx, left)
	must.True(t, errdefs.IsNotFound(err))
}

// ownerOf is the user and group of a file, or of a link itself.
func ownerOf(t *testing.T, file string) [2]uint32 {
	t.Helper()
	var stat syscall.Stat_t
	must.NoError(t, syscall.Lstat(file, &stat))
	return [2]uint32{stat.Uid, stat.Gid}
}
