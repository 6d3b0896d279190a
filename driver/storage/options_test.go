package storage

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
)

// optionsSpec is the part of a task's schema that Options are read with.
var optionsSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"mount":         hclspec.NewBlockList("mount", MountSpec),
	"mounts":        hclspec.NewBlockList("mounts", MountSpec),
	"volumes":       hclspec.NewAttr("volumes", "list(string)", false),
	"tmpfs":         hclspec.NewAttr("tmpfs", "list(string)", false),
	"image_volumes": hclspec.NewAttr("image_volumes", "string", false),
})

// parsed reads a config block as Nomad does.
func parsed(t *testing.T, block string) *Options {
	t.Helper()
	var got Options
	hclutils.NewConfigParser(optionsSpec).ParseHCL(t, "config {\n"+block+"\n}", &got)
	return &got
}

var volumesEnabled = Policy{Enabled: true}

func TestWantedMounts_FromTheJobspec(t *testing.T) {
	c := parsed(t, `
		mount {
			type     = "bind"
			source   = "local/conf"
			target   = "/etc/app/"
			readonly = true
			bind_options {
				propagation = "rslave"
			}
		}
		mount {
			target = "/var/lib/app"
			source = "app.data"
			volume_options {
				no_copy = true
			}
		}
		mounts = [
			{
				type   = "tmpfs"
				target = "/scratch"
				tmpfs_options = [{
					size = 1048576
					mode = 511
				}]
			},
			{
				target = "/cache"
			},
		]
		volumes = ["local/a:/a", "/srv:/srv:ro,rshared", "shared:/shared:z,nocopy", "local:/nolocal:Z"]
		tmpfs   = ["/run", "/tmp:size=64m,mode=1777,exec"]`)
	got, err := c.wantedMounts(volumesEnabled)
	must.NoError(t, err)
	for i := range got {
		got[i].option = ""
	}
	must.Eq(t, []wantedMount{
		{kind: "bind", source: "local/conf", target: "/etc/app", readonly: true, propagation: "rslave"},
		{kind: "volume", source: "app.data", target: "/var/lib/app", propagation: "rprivate", noCopy: true},
		{kind: "tmpfs", target: "/scratch", tmpfs: []string{"size=1048576", "mode=0777"}},
		{kind: "volume", target: "/cache", propagation: "rprivate"},
		{kind: "bind", source: "local/a", target: "/a", propagation: "rprivate", create: true},
		{kind: "bind", source: "/srv", target: "/srv", readonly: true, propagation: "rshared", create: true},
		{kind: "volume", source: "shared", target: "/shared", propagation: "rprivate", relabel: "z", noCopy: true,
			create: true},
		{kind: "bind", source: "local", target: "/nolocal", propagation: "rprivate", relabel: "Z", create: true},
		{kind: "tmpfs", target: "/run"},
		{kind: "tmpfs", target: "/tmp", tmpfs: []string{"size=64m", "mode=1777", "exec"}},
	}, got)
}

func TestWantedMounts_SelinuxLabelOfThePlugin(t *testing.T) {
	policy := Policy{SelinuxLabel: "z"}
	c := &Options{Volumes: []string{"local/a:/a", "local/b:/b:Z"}}
	got, err := c.wantedMounts(policy)
	must.NoError(t, err)
	must.Eq(t, "z", got[0].relabel)
	must.Eq(t, "Z", got[1].relabel)
}

func TestBadInput_Storage(t *testing.T) {
	mount := func(body string) string { return "mount {\n" + body + "\n}" }
	bind := func(body string) string { return mount("type = \"bind\"\nsource = \"local/x\"\n" + body) }
	target := func(path string) string { return bind(fmt.Sprintf("target = %q", path)) }
	volumes := func(entry string) string { return fmt.Sprintf("volumes = [%q]", entry) }
	tmpfs := func(entry string) string { return fmt.Sprintf("tmpfs = [%q]", entry) }
	cases := []struct {
		name  string
		block string
		errs  []string
	}{
		{"a type that is none", mount("type = \"nfs\"\ntarget = \"/x\""),
			[]string{`option mount[0]: type = "nfs"`, `must be "bind", "volume" or "tmpfs"`}},
		{"mounts is checked too", `mounts = [{type = "nfs", target = "/x"}]`, []string{`option mounts[0]: type = "nfs"`}},
		{"a bind of nothing", mount("type = \"bind\"\ntarget = \"/x\""), []string{`source = ""`, "needs a path"}},
		{"no target", bind(""), []string{`target = ""`, "must be an absolute path in the container"}},
		{"a relative target", target("x"), []string{`target = "x"`, "must be an absolute path"}},
		{"the root", target("/"), []string{`target = "/"`, "must not be the root"}},
		{"the root by another way", target("/x/../"), []string{`target = "/x/../"`, "must not be the root"}},
		{"/proc", target("/proc"), []string{`target = "/proc"`}},
		{"in /proc", target("/proc/sys/kernel"), []string{`target = "/proc/sys/kernel"`}},
		{"in /sys", target("/sys/fs/cgroup"), []string{`target = "/sys/fs/cgroup"`}},
		{"/dev", target("/dev/"), []string{`target = "/dev/"`}},
		{"a device of every container", target("/dev/null"), []string{`target = "/dev/null"`}},
		{"in /dev/pts", target("/dev/pts/0"), []string{`target = "/dev/pts/0"`}},
		{"what is ours", target("/.tranche/claims"), []string{`target = "/.tranche/claims"`, "lie in /.tranche"}},
		{"a directory of Nomad's", target("/secrets"), []string{`target = "/secrets"`}},
		{"a propagation that is none", bind("target = \"/x\"\nbind_options { propagation = \"up\" }"),
			[]string{`propagation = "up"`, `"rslave"`}},
		{"a tmpfs with a source", mount("type = \"tmpfs\"\nsource = \"x\"\ntarget = \"/x\""),
			[]string{`source = "x"`, "a tmpfs has none"}},
		{"a negative size", mount("type = \"tmpfs\"\ntarget = \"/x\"\ntmpfs_options { size = -1 }"),
			[]string{"tmpfs_options.size = -1", "number of bytes"}},
		{"a mode written in octal", mount("type = \"tmpfs\"\ntarget = \"/x\"\ntmpfs_options { mode = 1777 }"),
			[]string{"tmpfs_options.mode = 1777", "in decimal", "01777"}},
		{"options of another type", mount("type = \"tmpfs\"\ntarget = \"/x\"\nvolume_options { no_copy = true }"),
			[]string{"volume_options", `type "volume"`, `"tmpfs"`}},
		{"bind options of a volume", mount("target = \"/x\"\nbind_options { propagation = \"rslave\" }"),
			[]string{"bind_options", `type "bind"`}},
		{"a volume with a path", mount("source = \"/srv\"\ntarget = \"/x\""),
			[]string{`source = "/srv"`, "must be a name", `type "bind"`}},
		{"a volume that leads up", mount("source = \"..\"\ntarget = \"/x\""), []string{`source = ".."`, "must be a name"}},
		{"a volume that could be a draft of ours", mount("source = \".new-x\"\ntarget = \"/x\""),
			[]string{`source = ".new-x"`, "starts with a letter or digit"}},
		{"a relative path out of the allocation", volumes("../../../etc:/x"),
			[]string{`option volumes[0] = "../../../etc:/x"`, `source = "../../../etc"`, "must not leave the allocation's"}},
		{"volumes without a target", volumes("/srv"), []string{`option volumes[0] = "/srv"`, "must be SOURCE:TARGET"}},
		{"volumes without a source", volumes(":/x"), []string{"must be SOURCE:TARGET"}},
		{"volumes with too much", volumes("a:/b:ro:rw"), []string{"must be SOURCE:TARGET"}},
		{"volumes with an unknown option", volumes("local/a:/b:ro,fast"),
			[]string{`"fast" is no option`, `"ro"`, `"Z"`, `"rshared"`}},
		{"volumes with a propagation of a named one", volumes("data:/b:rshared"),
			[]string{`"rshared" is no option`, `"nocopy"`}},
		{"volumes with nocopy of a path", volumes("local/a:/b:nocopy"), []string{`"nocopy" is no option`}},
		{"volumes with a relative target", volumes("local/a:b"), []string{`target = "b"`}},
		{"tmpfs on nothing", tmpfs("tmp"), []string{`option tmpfs[0] = "tmp"`, `target = "tmp"`}},
		{"tmpfs with an unknown option", tmpfs("/x:huge=always"), []string{`"huge=always" is no option`, `"size=64m"`}},
		{"tmpfs with set-user-ID programs", tmpfs("/x:suid"), []string{`"suid" is no option`, `"nosuid"`}},
		{"tmpfs with devices", tmpfs("/x:dev"), []string{`"dev" is no option`}},
		{"tmpfs with a size that is none", tmpfs("/x:size=lots"), []string{`"size=lots" is no option`}},
		{"tmpfs with a size without value", tmpfs("/x:size"), []string{`"size" is no option`}},
		{"tmpfs with a flag that has a value", tmpfs("/x:exec=yes"), []string{`"exec=yes" is no option`}},
		{"tmpfs with set-ID bits", tmpfs("/x:mode=47777"), []string{`"mode=47777" is no option`}},
		{"two at one place", "volumes = [\"local/a:/x\"]\ntmpfs = [\"/x/\"]",
			[]string{`option volumes[0] = "local/a:/x" and option tmpfs[0] = "/x/" both mount at /x`}},
		{"image volumes of another kind", `image_volumes = "bind"`,
			[]string{`option image_volumes = "bind"`, `must be "anonymous", "tmpfs" or "ignore"`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := parsed(t, c.block).Check(volumesEnabled)
			must.Error(t, err)
			for _, want := range c.errs {
				must.ErrorContains(t, err, want)
			}
		})
	}
}

func TestBadInput_StorageWhatTheOperatorForbids(t *testing.T) {
	for _, block := range []string{`volumes = ["data:/data"]`, "mount {\n source = \"data\"\n target = \"/data\"\n}"} {
		c := parsed(t, block)
		must.NoError(t, c.Check(volumesEnabled))
		err := c.Check(Policy{})
		must.ErrorContains(t, err, `source = "data": named volumes are not enabled`)
		must.ErrorContains(t, err, "volumes { enabled = true }")
		must.ErrorContains(t, err, `write "./data"`)
	}
	must.NoError(t, parsed(t, `volumes = ["local/x:/x", "local:/y"]`).Check(Policy{}))
	must.NoError(t, parsed(t, "mount {\n target = \"/anonymous\"\n}").Check(Policy{}))
}

func TestBadInput_StorageOfATask(t *testing.T) {
	cfg := &drivers.TaskConfig{AllocDir: "/data/alloc/1234", Name: "web", Mounts: []*drivers.MountConfig{{TaskPath: "/vol/"}}}
	must.NoError(t, parsed(t, `volumes = ["local/x:/x", "/data/alloc/1234/alloc:/y"]`).CheckTask(cfg, Policy{}))
	must.NoError(t, parsed(t, `volumes = ["/etc:/x"]`).CheckTask(cfg, volumesEnabled))
	err := parsed(t, `volumes = ["/etc:/x", "/srv:/y", "./:/z", "local/v:/vol"]`).CheckTask(cfg, Policy{})
	for _, want := range []string{
		`option volumes[0] = "/etc:/x": source = "/etc": paths of the host are not enabled`, `option volumes[1] = "/srv:/y"`,
		`option volumes[2] = "./:/z": source = "./": must not be the directory of a whole task`,
		`volume_mount with the destination "/vol/" and option volumes[3] = "local/v:/vol" both mount at /vol`,
	} {
		must.ErrorContains(t, err, want)
	}
}

func TestBadInput_StorageAllAtOnce(t *testing.T) {
	err := parsed(t, "volumes = [\"a\"]\ntmpfs = [\"b\"]\nimage_volumes = \"c\"").Check(volumesEnabled)
	for _, option := range []string{"volumes[0]", "tmpfs[0]", "image_volumes"} {
		must.ErrorContains(t, err, option)
	}
}

func TestTmpfsMount(t *testing.T) {
	options := func(w wantedMount) []string { return tmpfsMount(w).Options }
	must.Eq(t, []string{"nosuid", "nodev", "noexec"}, options(wantedMount{}))
	must.Eq(t, []string{"nosuid", "nodev", "noexec", "size=1m", "ro"},
		options(wantedMount{readonly: true, tmpfs: []string{"size=1m"}}))
	must.Eq(t, []string{"nosuid", "nodev", "exec"}, options(wantedMount{tmpfs: []string{"exec"}}))
	must.Eq(t, "tmpfs", tmpfsMount(wantedMount{target: "/x"}).Type)
}

func TestPolicy_SelinuxLabel(t *testing.T) {
	for _, label := range []string{"", "z", "Z"} {
		must.NoError(t, Policy{SelinuxLabel: label}.Check())
	}
	err := Policy{SelinuxLabel: "zz"}.Check()
	must.ErrorContains(t, err, `plugin option volumes.selinuxlabel = "zz": must be "z"`)
	must.ErrorContains(t, err, `"Z"`)
}
