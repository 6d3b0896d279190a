package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/image-spec/identity"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/driver/storage"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/internal/thread"

	"github.com/tranche-gpu/tranche/internal/mounttest"
)

// Each option about storage is tried here in a real container.

// newStorageDriver is a driver that lets tasks mount paths of the host and named volumes.
func newStorageDriver(t *testing.T, edit ...func(*spec.Config)) *testDriver {
	t.Helper()
	n := requireNode(t)
	config := n.config()
	config.Volumes.Enabled = true
	config.VolumeDir = filepath.Join(t.TempDir(), "volumes")
	for _, e := range edit {
		e(&config)
	}
	return newTestDriverWith(t, n, config)
}

// noStorageLeft asserts that nothing is left of what a start prepares mounts with.
func (d *testDriver) noStorageLeft(cfg *drivers.TaskConfig) {
	d.t.Helper()
	mustHoldNothingPinned(d.t, d.driver.runDir)
	must.SliceEmpty(d.t, mounttest.Below(d.t, d.driver.runDir))
	_, err := d.client.SnapshotService(d.driver.config.Snapshotter).Stat(d.ctx, naming.ContainerID(cfg)+"-view")
	must.Error(d.t, err, must.Sprint("the view of the image is left"))
}

// pushFiles puts the busybox image with more files, and the volumes that it declares, into the registry.
func (n *testNode) pushFiles(t *testing.T, name string, volumes []string, files ...images.File) string {
	t.Helper()
	img, err := images.WithFiles(n.busybox, files...)
	must.NoError(t, err)
	img, err = images.WithConfig(img, func(c *v1.Config) {
		c.Volumes = map[string]struct{}{}
		for _, volume := range volumes {
			c.Volumes[volume] = struct{}{}
		}
	})
	must.NoError(t, err)
	ref, err := n.registry.Push(context.Background(), img, name)
	must.NoError(t, err)
	return ref
}

func TestStorage_Bind(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task(`
		cat /conf/a /single /byname
		echo x > /conf/a || echo readonly
		echo new > /data/n; stat -c '%a %u' /made; ls /link
		echo end`, func(o *spec.TaskConfig) {
		o.Mounts = []storage.MountConfig{
			{Type: "bind", Source: "local/conf", Target: "/conf", Readonly: true},
			{Type: "bind", Source: "local/conf/a", Target: "/single"},
		}
		o.MountsList = []storage.MountConfig{{Type: "bind", Source: "local/link", Target: "/link"}}
		o.Volumes = []string{"../alloc/data:/data", "./made/deep:/made:ro,Z"}
	})
	local := cfg.TaskDir().LocalDir
	mounttest.Write(t, local, map[string]string{"conf/a": "a\n"})
	must.NoError(t, os.Symlink("conf", filepath.Join(local, "link")))
	// The allocation's own directories may be named from the host's root, as the docker driver has it.
	absolute := "volumes = [\"" + local + "/conf/a:/byname\"]"
	must.NoError(t, parsed(t, absolute).StorageOptions().Check((&spec.Config{}).StoragePolicy()))
	d.edit(cfg, func(o *spec.TaskConfig) { o.Volumes = append(o.Volumes, local+"/conf/a:/byname") })

	_, out := d.run(cfg, "end")
	must.Eq(t, "a\na\na\nreadonly\n755 0\na\nend\n", out)
	data, err := os.ReadFile(filepath.Join(cfg.TaskDir().SharedAllocDir, "data/n"))
	must.NoError(t, err)
	must.Eq(t, "new\n", string(data))
	d.noStorageLeft(cfg)
	// What the runtime mounted by its path was none that a task can change.
	container, err := d.client.LoadContainer(d.ctx, naming.ContainerID(cfg))
	must.NoError(t, err)
	spec, err := container.Spec(d.ctx)
	must.NoError(t, err)
	for _, m := range spec.Mounts {
		if slices.Contains([]string{"/conf", "/single", "/link", "/data", "/made", "/byname"}, m.Destination) {
			must.StrHasPrefix(t, storage.PinnedDir(d.driver.runDir)+"/", m.Source)
		}
	}
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
}

// edit changes a task's options.
func (d *testDriver) edit(cfg *drivers.TaskConfig, edit func(*spec.TaskConfig)) {
	d.t.Helper()
	var options spec.TaskConfig
	must.NoError(d.t, cfg.DecodeDriverConfig(&options))
	edit(&options)
	must.NoError(d.t, cfg.EncodeConcreteDriverConfig(&options))
}

func TestBadInput_StorageOfAStart(t *testing.T) {
	d := newTestDriver(t)
	host := t.TempDir()
	mounttest.Write(t, host, map[string]string{"shadow": "the host's"})
	cases := []struct {
		name  string
		mount storage.MountConfig
		errs  []string
	}{
		{"a path of the host", storage.MountConfig{Type: "bind", Source: host, Target: "/x"},
			[]string{"option mount[0]", host, "volumes { enabled = true }"}},
		{"another allocation's directory", storage.MountConfig{Type: "bind", Source: "/var/nomad/alloc/x/web/local", Target: "/x"},
			[]string{"option mount[0]", "not enabled"}},
		{"the whole task's directory", storage.MountConfig{Type: "bind", Source: ".", Target: "/x"},
			[]string{`source = "."`, "whole task"}},
		{"the private directory", storage.MountConfig{Type: "bind", Source: "private", Target: "/x"},
			[]string{`"private"`, "not for jobs"}},
		{"nothing", storage.MountConfig{Type: "bind", Source: "local/none", Target: "/x"},
			[]string{"task/local/none", "no such file", "artifact or template"}},
		{"a link to the host", storage.MountConfig{Type: "bind", Source: "local/host/shadow", Target: "/x"},
			[]string{"task/local/host/shadow", "link"}},
		{"a link to the secrets", storage.MountConfig{Type: "bind", Source: "local/up", Target: "/x"}, []string{"task/local/up"}},
		{"a propagation that the host does not have",
			storage.MountConfig{Type: "bind", Source: "local", Target: "/x", BindOptions: storage.BindOptions{Propagation: "rshared"}},
			[]string{"option mount[0]", "does not propagate"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := d.in(t)
			cfg := d.failing(func(o *spec.TaskConfig) { o.Mounts = []storage.MountConfig{c.mount} })
			must.NoError(t, os.Symlink(host, filepath.Join(cfg.TaskDir().LocalDir, "host")))
			must.NoError(t, os.Symlink("../secrets", filepath.Join(cfg.TaskDir().LocalDir, "up")))
			_, _, err := d.StartTask(cfg)
			must.Error(t, err)
			for _, want := range c.errs {
				must.ErrorContains(t, err, want)
			}
			d.nothingLeft(cfg)
			d.noStorageLeft(cfg)
		})
	}
}

func TestStorage_HostPaths(t *testing.T) {
	d := newStorageDriver(t)
	host := t.TempDir()
	mounttest.Write(t, host, map[string]string{"f": "the host's\n"})
	cfg := d.task("cat /h/f /m/f; echo x > /m/f || echo readonly; echo made > /made/f; echo end", func(o *spec.TaskConfig) {
		o.Volumes = []string{host + ":/h", host + "/new/dir:/made"}
		o.Mounts = []storage.MountConfig{{Type: "bind", Source: host, Target: "/m", Readonly: true}}
	})
	_, out := d.run(cfg, "end")
	must.Eq(t, "the host's\nthe host's\nreadonly\nend\n", out)
	must.FileExists(t, filepath.Join(host, "new/dir/f"))

	cfg = d.failing(func(o *spec.TaskConfig) {
		o.Mounts = []storage.MountConfig{{Type: "bind", Source: host + "/none", Target: "/m"}}
	})
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, fmt.Sprintf("option mount[0]: source = %q", host+"/none"))
	must.ErrorContains(t, err, "no such file")
	d.nothingLeft(cfg)
}

// dataImage has content at /data that belongs to a user.
func (n *testNode) dataImage(t *testing.T, name string, volumes ...string) string {
	t.Helper()
	return n.pushFiles(t, name, volumes,
		images.File{Path: "/data", Dir: true, Mode: 0o750, Owner: 1000},
		images.File{Path: "/data/a", Content: "the image's\n", Mode: 0o640, Owner: 1000},
		images.File{Path: "/data/link", Link: "/etc/passwd"},
		images.File{Path: "/data/sub/tool", Content: "#!/bin/sh\necho runs\n", Mode: 0o4755})
}

func TestStorage_NamedVolume(t *testing.T) {
	d := newStorageDriver(t)
	image := d.node.dataImage(t, "named-volume:1")
	use := func(options ...string) func(*spec.TaskConfig) {
		return func(o *spec.TaskConfig) {
			o.Image, o.Volumes = image, []string{strings.Join(append([]string{"db.data:/data"}, options...), ":")}
		}
	}
	// A new one has what the image has, and belongs to whom it belongs to there.
	cfg := d.task("stat -c '%a %u %g' /data /data/a; stat -c %a /data/sub/tool; readlink /data/link; cat /data/a; "+
		"/data/sub/tool; echo mine > /data/a; echo end", use())
	_, out := d.run(cfg, "end")
	must.Eq(t, "750 1000 1000\n640 1000 1000\n4755\n/etc/passwd\nthe image's\nruns\nend\n", out)
	d.noStorageLeft(cfg)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
	info, err := os.Stat(d.driver.config.VolumeDir)
	must.NoError(t, err)
	must.Eq(t, 0o700, info.Mode().Perm())

	// It stays as the tasks leave it, for whichever comes next.
	cfg = d.task("cat /data/a; echo x > /data/a || echo readonly; echo end", use("ro"))
	_, out = d.run(cfg, "end")
	must.Eq(t, "mine\nreadonly\nend\n", out)

	cfg = d.task("ls -A /data /other; echo end", func(o *spec.TaskConfig) {
		o.Image = image
		o.Mounts = []storage.MountConfig{
			{Type: "volume", Source: "empty", Target: "/data", VolumeOptions: storage.VolumeOptions{NoCopy: true}},
			{Type: "volume", Source: "new", Target: "/other"}, // where the image has nothing
		}
	})
	_, out = d.run(cfg, "end")
	must.Eq(t, "/data:\n\n/other:\nend\n", out)
	d.noStorageLeft(cfg)
}

func TestStorage_NamedVolumeOfManyAtOnce(t *testing.T) {
	d := newStorageDriver(t)
	image := d.node.dataImage(t, "named-volume-at-once:1")
	var tasks []*drivers.TaskConfig
	for range 4 {
		tasks = append(tasks, d.task("cat /data/a; echo end", func(o *spec.TaskConfig) {
			o.Image, o.Volumes = image, []string{"same:/data"}
		}))
	}
	errs := make(chan error)
	for _, cfg := range tasks {
		go func() {
			_, _, err := d.StartTask(cfg)
			errs <- err
		}()
		t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
	}
	for range tasks {
		must.NoError(t, <-errs)
	}
	for _, cfg := range tasks {
		must.Eq(t, "the image's\nend\n", d.stdout(cfg, "end"))
	}
	d.noStorageLeft(tasks[0])
}

func TestStorage_AnonymousVolume(t *testing.T) {
	d := newTestDriver(t) // allowed on every node
	image := d.node.dataImage(t, "anonymous-volume:1")
	cfg := d.task("cp /data/a /local/found; cat /data/a; echo mine > /data/a; ls -A /new; echo end", func(o *spec.TaskConfig) {
		o.Image = image
		o.Mounts = []storage.MountConfig{{Type: "volume", Target: "/data"}, {Type: "volume", Target: "/new"}}
	})
	_, out := d.run(cfg, "end")
	must.Eq(t, "the image's\nend\n", out)
	d.noStorageLeft(cfg)
	kept := filepath.Join(cfg.TaskDir().Dir, storage.AnonymousDir)
	info, err := os.Stat(kept)
	must.NoError(t, err)
	must.Eq(t, 0o700, info.Mode().Perm())
	data, err := os.ReadFile(filepath.Join(kept, storage.AnonymousName("/data"), "a"))
	must.NoError(t, err)
	must.Eq(t, "mine\n", string(data))

	// A restart of the task finds what it wrote.
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	d.nothingLeft(cfg)
	d.start(cfg)
	d.wait(cfg)
	data, err = os.ReadFile(filepath.Join(cfg.TaskDir().LocalDir, "found"))
	must.NoError(t, err)
	must.Eq(t, "mine\n", string(data))
}

func TestStorage_ImageVolumes(t *testing.T) {
	d := newTestDriver(t)
	image := d.node.dataImage(t, "image-volumes:1", "/data", "/data/sub", "/empty")
	const look = `cat /data/a; /data/sub/tool; grep -c ' /data ' /proc/mounts; grep ' /empty ' /proc/mounts | cut -d' ' -f1,3
		touch /empty/f && echo written; echo end`
	run := func(mode, script string, edit ...func(*spec.TaskConfig)) (string, *drivers.TaskConfig) {
		cfg := d.task(script, append(edit, func(o *spec.TaskConfig) { o.Image, o.ImageVolumes = image, mode })...)
		_, out := d.run(cfg, "end")
		d.noStorageLeft(cfg)
		must.NoError(t, d.DestroyTask(cfg.ID, false))
		d.nothingLeft(cfg)
		return out, cfg
	}
	for _, mode := range []string{"", "anonymous"} {
		out, cfg := run(mode, look)
		must.StrHasPrefix(t, "the image's\nruns\n1\n", out)
		must.StrContains(t, out, "written")
		must.FileExists(t, filepath.Join(cfg.TaskDir().Dir, storage.AnonymousDir, storage.AnonymousName("/empty"), "f"))
	}
	out, cfg := run("tmpfs", "ls -A /data/sub; stat -c %a /empty /data; "+look)
	must.StrHasPrefix(t, "1777\n750\n1\ntmpfs tmpfs\nwritten\nend", out)
	must.DirNotExists(t, filepath.Join(cfg.TaskDir().Dir, storage.AnonymousDir))

	out, _ = run("ignore", "ls -d /empty; grep -E ' /(data|empty)' /proc/mounts; cat /data/a; echo end")
	must.Eq(t, "the image's\nend\n", out)

	// Where the job mounts something the image's volume is left out; below it, it is not.
	out, _ = run("", "ls -A /data; ls -A /data/sub; echo end", func(o *spec.TaskConfig) { o.Tmpfs = []string{"/data"} })
	must.Eq(t, "sub\ntool\nend\n", out)
}

// TestStorage_ImageVolumesLeadNowhere starts images whose links lead out of them, to files of the host.
func TestStorage_ImageVolumesLeadNowhere(t *testing.T) {
	d := newTestDriver(t)
	host := t.TempDir()
	mounttest.Write(t, host, map[string]string{"dir/secret": "the host's"})
	for name, link := range map[string]string{
		"absolute": host, "relative": strings.Repeat("../", 20) + host[1:], "process": "/proc/self/root" + host,
	} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			image := d.node.pushFiles(t, "hostile-"+name+":1", []string{"/link/dir"}, images.File{Path: "/link", Link: link})
			cfg := d.task("find / -name secret -not -path '/proc/*'; echo end", func(o *spec.TaskConfig) { o.Image = image })
			_, _, err := d.StartTask(cfg)
			t.Cleanup(func() { _ = d.driver.DestroyTask(cfg.ID, true) })
			if err == nil {
				d.wait(cfg)
				must.Eq(t, "end\n", d.stdout(cfg, "end"))
			}
			must.FileNotExists(t, filepath.Join(cfg.TaskDir().Dir, storage.AnonymousDir, storage.AnonymousName("/link/dir"), "secret"))
			d.noStorageLeft(cfg)
		})
	}
	image := d.node.pushFiles(t, "volume-over-file:1", []string{"/etc/passwd"})
	cfg := d.failing(func(o *spec.TaskConfig) { o.Image = image })
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, "volume /etc/passwd of the image")
	must.ErrorContains(t, err, "the image has a file at /etc/passwd")
	d.nothingLeft(cfg)
	d.noStorageLeft(cfg)
}

// TestStorage_ImageOfManyLayers has more layers than their full names fit into the options of a mount.
func TestStorage_ImageOfManyLayers(t *testing.T) {
	d := newTestDriver(t)
	img := d.node.busybox
	for i := range 70 {
		var err error
		img, err = images.WithFiles(img, images.File{Path: fmt.Sprintf("/data/%d", i), Content: "x"})
		must.NoError(t, err)
	}
	img, err := images.WithConfig(img, func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}} })
	must.NoError(t, err)
	ref, err := d.node.registry.Push(context.Background(), img, "layers:1")
	must.NoError(t, err)
	cfg := d.task("ls /data | wc -l; grep -c ' /data ' /proc/mounts; echo end", func(o *spec.TaskConfig) { o.Image = ref })
	_, out := d.run(cfg, "end")
	must.Eq(t, "70\n1\nend\n", out)
	d.noStorageLeft(cfg)
}

func TestStorage_ImageVolumesOfTheNativeSnapshotter(t *testing.T) {
	d := newStorageDriver(t, func(c *spec.Config) { c.Snapshotter, c.Volumes.SelinuxLabel = "native", "z" })
	image := d.node.dataImage(t, "native:1", "/data")
	cfg := d.task("cat /data/a; grep -c ' /data ' /proc/mounts; echo end", func(o *spec.TaskConfig) { o.Image = image })
	_, out := d.run(cfg, "end")
	must.Eq(t, "the image's\n1\nend\n", out)
	d.noStorageLeft(cfg)
}

func TestStorage_Tmpfs(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task(`
		grep -E ' /(plain|full|block|ro) ' /proc/mounts | sort -k2 | cut -d' ' -f2-4
		stat -c '%n %a %u' /full /block
		cp /bin/busybox /plain/; /plain/busybox true 2>/dev/null || echo noexec
		cp /bin/busybox /full/; /full/busybox echo exec
		touch /ro/f 2>/dev/null || echo readonly; echo end`, func(o *spec.TaskConfig) {
		o.Tmpfs = []string{"/plain", "/full:size=4m,mode=0711,uid=1000,exec,nr_inodes=64"}
		o.Mounts = []storage.MountConfig{
			{Type: "tmpfs", Target: "/block", TmpfsOptions: storage.TmpfsOptions{SizeBytes: 1 << 20, Mode: 0o1770}},
			{Type: "tmpfs", Target: "/ro", Readonly: true},
		}
	})
	_, out := d.run(cfg, "end")
	for _, want := range []string{
		"/block tmpfs rw,nosuid,nodev,noexec,relatime,size=1024k,mode=1770", "/plain tmpfs rw,nosuid,nodev,noexec",
		"/full tmpfs rw,nosuid,nodev,relatime,size=4096k,nr_inodes=64,mode=711,uid=1000", "/ro tmpfs ro,nosuid,nodev,noexec",
		"/full 711 1000\n/block 1770 0\nnoexec\nexec\nreadonly\nend\n",
	} {
		must.StrContains(t, out, want)
	}
}

func TestStorage_OneBelowTheOther(t *testing.T) {
	d := newTestDriver(t)
	cfg := d.task("cat /a/b/f /a/f /etc/hosts; echo end", func(o *spec.TaskConfig) {
		o.Volumes = []string{"local/b:/a/b", "local/a:/a"} // the one below comes first in the jobspec
		o.Mounts = []storage.MountConfig{{Type: "bind", Source: "local/hosts", Target: "/etc/hosts"}}
	})
	mounttest.Write(t, cfg.TaskDir().LocalDir, map[string]string{"a/f": "a\n", "b/f": "b\n", "a/b/covered": "", "hosts": "my own\n"})
	_, out := d.run(cfg, "end")
	must.Eq(t, "b\na\nmy own\nend\n", out)
}

// TestStorage_Propagation makes mounts on both sides of a volume after the task has started.
func TestStorage_Propagation(t *testing.T) {
	d := newTestDriver(t)
	cases := []struct {
		mode                   string
		seenInside, seenByHost bool
	}{{"private", false, false}, {"host-to-task", true, false}, {"bidirectional", true, true}}
	const script = `touch /local/up; while [ ! -e /local/go ]; do sleep 0.05; done
		[ -e /vol/host/f ] && echo inside: seen || echo inside: hidden`
	for _, c := range cases {
		t.Run(c.mode, func(t *testing.T) {
			d := d.in(t)
			host := sharedVolume(t)
			cfg := d.task(script)
			cfg.Mounts = []*drivers.MountConfig{{HostPath: host, TaskPath: "/vol", PropagationMode: c.mode}}
			testPropagation(d, cfg, host, "/vol", c.seenInside, c.seenByHost)
		})
		propagation := map[string]string{"host-to-task": "rslave", "bidirectional": "rshared"}[c.mode]
		if propagation == "" {
			propagation = storage.Private
		}
		t.Run("bind_options.propagation = "+propagation, func(t *testing.T) {
			d := d.in(t)
			cfg := d.task(script, func(o *spec.TaskConfig) {
				o.Mounts = []storage.MountConfig{{Type: "bind", Source: "vol", Target: "/vol",
					BindOptions: storage.BindOptions{Propagation: propagation}}}
			})
			host := filepath.Join(cfg.TaskDir().Dir, "vol")
			must.NoError(t, os.Mkdir(host, 0o755))
			fillSharedVolume(t, host)
			testPropagation(d, cfg, host, "/vol", c.seenInside, c.seenByHost)
			d.noStorageLeft(cfg)
		})
	}
}

// sharedVolume is a directory of the host that propagates, with places to mount at.
func sharedVolume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fillSharedVolume(t, dir)
	return dir
}

func fillSharedVolume(t *testing.T, dir string) {
	t.Helper()
	mounttest.Shared(t, dir)
	for _, place := range []string{"host", "inside"} {
		must.NoError(t, os.Mkdir(filepath.Join(dir, place), 0o755))
	}
}

func testPropagation(d *testDriver, cfg *drivers.TaskConfig, host, inside string, seenInside, seenByHost bool) {
	d.t.Helper()
	local := cfg.TaskDir().LocalDir
	handle := d.start(cfg)
	eventually(d.t, "the task to run", func() bool {
		_, err := os.Stat(filepath.Join(local, "up"))
		return err == nil
	})
	mounttest.Tmpfs(d.t, filepath.Join(host, "host"))
	touch(d.t, filepath.Join(host, "host/f"))
	must.NoError(d.t, mountInside(pidOf(d.t, handle), filepath.Join(inside, "inside")))
	must.Eq(d.t, seenByHost, len(mounttest.Below(d.t, filepath.Join(host, "inside"))) > 0, must.Sprint("what the host sees"))
	touch(d.t, filepath.Join(local, "go"))
	d.wait(cfg)
	want := map[bool]string{true: "inside: seen", false: "inside: hidden"}[seenInside]
	d.stdout(cfg, want)
	_ = unix.Unmount(filepath.Join(host, "inside"), unix.MNT_DETACH)
}

// mountInside mounts a tmpfs in a container, as a process of it could that is allowed to mount.
func mountInside(pid int, at string) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	return thread.Run(func() error {
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m")
		}
		return err
	})
}

// TestStorage_ViewOfAKilledPlugin finds the view of the image that an earlier attempt at the start left.
func TestStorage_ViewOfAKilledPlugin(t *testing.T) {
	d := newTestDriver(t)
	image := d.node.dataImage(t, "view-left:1", "/data")
	ignore := d.task("echo end", func(o *spec.TaskConfig) { o.Image, o.ImageVolumes = image, "ignore" })
	d.run(ignore, "end") // has the image pulled
	cfg := d.task("cat /data/a; echo end", func(o *spec.TaskConfig) { o.Image = image })
	left, err := d.client.GetImage(d.ctx, image)
	must.NoError(t, err)
	layers, err := left.RootFS(d.ctx)
	must.NoError(t, err)
	snapshotter := d.client.SnapshotService(spec.DefaultSnapshotter)
	_, err = snapshotter.View(d.ctx, naming.ContainerID(cfg)+"-view", identity.ChainID(layers).String())
	must.NoError(t, err)
	_, out := d.run(cfg, "end")
	must.Eq(t, "the image's\nend\n", out)
	d.noStorageLeft(cfg)
}

// TestStorage_ViewGoesBeforeTheContainerComes looks while the start's lease still holds everything that it made.
func TestStorage_ViewGoesBeforeTheContainerComes(t *testing.T) {
	d := newTestDriver(t)
	ref := d.node.dataImage(t, "view-goes:1", "/data")
	cfg := d.failing(func(o *spec.TaskConfig) { o.Image = ref })
	s, err := d.driver.prepare(d.ctx, cfg)
	must.NoError(t, err)
	ctx, giveBack, err := d.driver.hold(d.ctx, s)
	must.NoError(t, err)
	defer giveBack()
	i, err := d.driver.images.Ensure(ctx, &image.Request{Options: s.options.ImageOptions(&d.driver.config), Task: s.cfg})
	must.NoError(t, err)
	prepared, err := d.driver.mounts.Prepare(ctx, &storage.Request{Task: cfg, ContainerID: s.id,
		Options: *s.options.StorageOptions(), Image: i})
	must.NoError(t, err)
	must.FileExists(t, filepath.Join(cfg.TaskDir().Dir, storage.AnonymousDir, storage.AnonymousName("/data"), "a"))
	must.Len(t, 3, mounttest.Below(t, d.driver.runDir)) // the place for pinned sources, the logs and the volume
	prepared.Release()
	d.noStorageLeft(cfg)
}

// TestStorage_SweptByTheNextPlugin leaves what a plugin process leaves that is killed during a start.
func TestStorage_SweptByTheNextPlugin(t *testing.T) {
	d := newStorageDriver(t)
	cfg := d.failing()
	mounttest.Write(t, cfg.TaskDir().LocalDir, map[string]string{"f": "kept"})
	runDir := d.driver.runDir
	pinned := filepath.Join(storage.PinnedDir(runDir), naming.ContainerID(cfg))
	mounttest.Write(t, pinned, map[string]string{"lock": ""})
	place := filepath.Join(pinned, "mount")
	must.NoError(t, os.Mkdir(place, 0o700))
	must.NoError(t, unix.Mount("tmpfs", place, "tmpfs", 0, ""))
	must.NoError(t, os.Mkdir(filepath.Join(place, "0"), 0o700))
	must.NoError(t, unix.Mount(cfg.TaskDir().LocalDir, filepath.Join(place, "0"), "", unix.MS_BIND, ""))
	mounttest.Write(t, d.driver.config.VolumeDir, map[string]string{".new-data/half": "", "whole/f": ""})

	d.driver.Shutdown()
	next := newTestDriverWith(t, d.node, d.driver.config)
	next.noStorageLeft(cfg)
	must.DirNotExists(t, filepath.Join(d.driver.config.VolumeDir, ".new-data"))
	must.FileExists(t, filepath.Join(d.driver.config.VolumeDir, "whole/f"))
	must.FileExists(t, filepath.Join(cfg.TaskDir().LocalDir, "f"))
}

// mustHoldNothingPinned asserts that no pinned sources are left below a run_dir.
func mustHoldNothingPinned(t *testing.T, runDir string) {
	t.Helper()
	must.SliceEmpty(t, mounttest.Below(t, storage.PinnedDir(runDir)))
	entries, err := os.ReadDir(storage.PinnedDir(runDir))
	if !os.IsNotExist(err) {
		must.NoError(t, err)
	}
	must.SliceEmpty(t, entries)
}
