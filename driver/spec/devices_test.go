package spec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/driver/gpu"
)

func TestParseDevice(t *testing.T) {
	for entry, want := range map[string]hostDevice{
		"/dev/fuse":           {"/dev/fuse", "/dev/fuse", "/dev/fuse", "rwm"},
		"/dev/fuse:/dev/f":    {"/dev/fuse:/dev/f", "/dev/fuse", "/dev/f", "rwm"},
		"/dev/fuse:r":         {"/dev/fuse:r", "/dev/fuse", "/dev/fuse", "r"},
		"/dev/fuse:/dev/f:mr": {"/dev/fuse:/dev/f:mr", "/dev/fuse", "/dev/f", "mr"},
	} {
		got, err := parseDevice(entry)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	for _, entry := range []string{"", "fuse", "/dev", "/etc/passwd", "/dev/../etc/passwd", "/dev/x:y", "/dev/x:/.tranche/y",
		"/dev/x:/dev/y:q", "/dev/x:/dev/y:rr", "/dev/x:/dev/y:", "/dev/x:/dev/y:r:w", "/dev/x:/dev/../y"} {
		_, err := parseDevice(entry)
		must.ErrorContains(t, err, "option devices = ", must.Sprint(entry))
		must.ErrorContains(t, err, "must be a path beneath /dev")
	}
}

func TestAllowDevices(t *testing.T) {
	gpu := specs.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195}
	control := specs.LinuxDevice{Path: "/dev/nvidia-uvm", Type: "c", Major: 510}
	alias := specs.LinuxDevice{Path: "/dev/card", Type: "c", Major: 195}
	fuse := specs.LinuxDevice{Path: "/dev/fuse", Type: "c", Major: 10}
	sound := specs.LinuxDevice{Path: "/dev/snd/seq", Type: "c", Major: 116}
	cases := []struct {
		pattern string
		allowed []specs.LinuxDevice
		refused []specs.LinuxDevice
	}{
		{"/dev/fuse", []specs.LinuxDevice{fuse}, []specs.LinuxDevice{gpu, sound}},
		{"/dev/*", []specs.LinuxDevice{fuse}, []specs.LinuxDevice{gpu, control, alias, sound}},
		{"/dev/[n]vidia0", nil, []specs.LinuxDevice{gpu}},
		{"/dev/nvidia*", []specs.LinuxDevice{gpu, control}, []specs.LinuxDevice{alias, fuse}},
		{"/dev/snd/*", []specs.LinuxDevice{sound}, []specs.LinuxDevice{fuse}},
	}
	for _, c := range cases {
		t.Run(c.pattern, func(t *testing.T) {
			config := &Config{AllowDevices: []string{c.pattern}}
			for _, node := range c.allowed {
				must.True(t, config.allowsDevice(node), must.Sprint(node.Path))
			}
			for _, node := range c.refused {
				must.False(t, config.allowsDevice(node), must.Sprint(node.Path))
			}
		})
	}
	must.False(t, (&Config{}).allowsDevice(fuse))
}

func TestWithHostDevices(t *testing.T) {
	plugin := &Config{AllowDevices: []string{"/dev/zero"}}
	s := apply(t, withHostDevices(&TaskConfig{Devices: []string{"/dev/zero:/dev/nought:r"}}, plugin))
	must.Len(t, 1, s.Linux.Devices)
	must.Eq(t, "/dev/nought", s.Linux.Devices[0].Path)
	must.Eq(t, 5, s.Linux.Devices[0].Minor)
	must.Eq(t, "r", s.Linux.Resources.Devices[0].Access)

	for _, entry := range []string{"/dev/null", "/dev/no-such-device", "/dev/pts"} {
		err := (&TaskConfig{Devices: []string{entry}}).checkDevices(plugin)
		must.ErrorContains(t, err, `option devices = "`+entry+`"`)
		_, err = tryApply(withHostDevices(&TaskConfig{Devices: []string{entry}}, plugin))
		must.ErrorContains(t, err, `option devices = "`+entry+`"`)
	}
	err := (&TaskConfig{Devices: []string{"/dev/null"}}).checkDevices(plugin)
	must.ErrorContains(t, err, "allow_devices")
	must.ErrorContains(t, err, `["/dev/zero"]`)
}

// What counts is the device, not a link that leads to it.
func TestHostDevices_LinksAreFollowed(t *testing.T) {
	link := hostDevice{given: "x", source: filepath.Join(t.TempDir(), "link"), target: "/dev/x", permissions: "r"}
	must.NoError(t, os.Symlink("/dev/zero", link.source))
	_, err := link.nodes(&Config{AllowDevices: []string{link.source}})
	must.ErrorContains(t, err, "does not allow /dev/zero")
	s, err := link.nodes(&Config{AllowDevices: []string{"/dev/zero"}})
	must.NoError(t, err)
	must.Eq(t, "/dev/x", s.Linux.Devices[0].Path)
}

// cdiDir has CDI specifications of two vendors: one of an innocent device, one that passes on a GPU under another name. A
// third specification is broken.
const cdiDir = "testdata/cdi"

func TestWithCDIDevices(t *testing.T) {
	plugin := &Config{AllowDevices: []string{"vendor.com/class=*"}, CDISpecDirs: []string{cdiDir}}
	task := func(name string) *TaskConfig { return &TaskConfig{Devices: []string{name}} }
	s := apply(t, withCDIDevices(task("vendor.com/class=one"), plugin), (&gpu.Prepared{}).WithGPU())
	must.Eq(t, "/dev/cdi-one", s.Linux.Devices[0].Path)
	must.Eq(t, []string{"CDI_DEVICE=one", claim.VisibleDevices + "=" + claim.NoDevices}, s.Process.Env)
	must.Eq(t, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, s.Hooks.CreateRuntime[0].Env)

	_, err := tryApply(withCDIDevices(task("vendor.com/class=two"), plugin))
	must.ErrorContains(t, err, `option devices = "vendor.com/class=two": no CDI specification`)
	must.ErrorContains(t, err, "broken.json")
}

func TestAllowCDI(t *testing.T) {
	const gpu, mig, sly = "nvidia.com/gpu=0", "management.nvidia.com/gpu=all", "sly.com/class=gpu"
	cases := []struct {
		pattern string
		name    string
		want    string
	}{
		{"vendor.com/class=one", "vendor.com/class=one", ""},
		{"vendor.com/class=1", "vendor.com/class=one", "does not allow it"},
		{"*/*", "vendor.com/class=one", ""},
		{"*/*", gpu, "by a device block of the jobspec"},
		{"*.com/gpu=*", gpu, "by a device block of the jobspec"},
		{"*nvidia.com/gpu=*", mig, "by a device block of the jobspec"},
		{"*/*", sly, "by a device block of the jobspec"},
		{"sly.com/*", sly, ""},
		// Allowed by name, and not on this node.
		{"nvidia.com/gpu=*", gpu, "no CDI specification"},
		{"management.nvidia.com/*", mig, "no CDI specification"},
	}
	for _, c := range cases {
		t.Run(c.pattern+" "+c.name, func(t *testing.T) {
			plugin := &Config{AllowDevices: []string{c.pattern}, CDISpecDirs: []string{cdiDir}}
			_, err := tryApply(withCDIDevices(&TaskConfig{Devices: []string{c.name}}, plugin))
			if c.want == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.want)
			must.ErrorContains(t, err, `option devices = "`+c.name)
		})
	}
	must.ErrorContains(t, (&TaskConfig{Devices: []string{gpu}}).checkDevices(&Config{}), "allow_devices")
}

func TestWithDevices(t *testing.T) {
	cfg := &drivers.TaskConfig{Devices: []*drivers.DeviceConfig{
		{HostPath: "/dev/null", TaskPath: "/dev/nothing", Permissions: "r"},
	}}
	s := apply(t, withDevices(cfg))
	must.Len(t, 1, s.Linux.Devices)
	must.Eq(t, "/dev/nothing", s.Linux.Devices[0].Path)
	must.Eq(t, "r", s.Linux.Resources.Devices[0].Access)

	cfg.Devices[0].HostPath = "/dev/no-such-device"
	_, err := tryApply(withDevices(cfg))
	must.ErrorContains(t, err, "/dev/no-such-device")
}
