package userns

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/tranche-gpu/tranche/internal/needs"

	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestNodeRange(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := file("good", "root:100000:65536\ncontainers:200000:655360\ncontainers:900000:65536\n")
	other := file("other", "containers:300000:655360\n")
	none := file("none", "root:100000:65536\n")
	low := file("low", "containers:1000:655360\n")
	cases := []struct {
		name          string
		option        string
		users, groups string
		want          Range
		err           string
	}{
		{"the option", "1000000:131072", none, none, Range{1000000, 131072}, ""},
		{"the node's", "", good, good, Range{200000, 655360}, ""},
		{"other groups than users", "", good, other, Range{}, "are not the same"},
		{"no groups", "", good, none, Range{}, "are not the same"},
		{"nothing", "", none, none, Range{}, "userns_range"},
		{"no file", "", filepath.Join(dir, "missing"), none, Range{}, "/etc/subuid"},
		{"the host's users", "", low, low, Range{}, "65536 or later"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := NodeRange(c.option, SubIDFiles{c.users, c.groups})
			if c.err != "" {
				must.ErrorContains(t, err, c.err)
				return
			}
			must.NoError(t, err)
			must.Eq(t, c.want, got)
		})
	}
}

func TestRange_Free(t *testing.T) {
	all := Range{100000, 3*PerContainer - 1}
	first, second := Range{100000, PerContainer}, Range{165536, PerContainer}
	got, ok := all.free(nil)
	must.True(t, ok)
	must.Eq(t, first, got)
	got, ok = all.free([]Range{first, {900000, 65536}})
	must.True(t, ok)
	must.Eq(t, second, got)
	// One ID of a range that was configured before is in the way of a whole container.
	got, ok = all.free([]Range{{165535, 1}})
	must.True(t, ok)
	must.Eq(t, second, got)
	_, ok = all.free([]Range{second, first})
	must.False(t, ok)

	parsed, err := parseHostIDs(second.String())
	must.NoError(t, err)
	must.Eq(t, second, parsed)
	_, err = parseHostIDs("165536")
	must.Error(t, err)
}

func TestRange_HostID(t *testing.T) {
	all := Range{100000, 3 * PerContainer}
	ids := Range{165536, PerContainer}
	for id, want := range map[uint32]uint32{
		0: 165536, 1000: 166536, 65535: 231071, // as images and jobspecs have them
		100000: 165536, 231072 + 7: 165536 + 7, // of an earlier plugin process
		165536: 165536,
		70000:  70000, 80123: 80123, 296608: 296608, // the host's
	} {
		must.Eq(t, want, ids.hostID(id, all))
	}
}

func TestWithUserNamespace(t *testing.T) {
	sysfs := specs.Mount{Type: "sysfs", Destination: "/sys", Options: []string{"ro"}}
	network := func(path string) oci.SpecOpts {
		return func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
			s.Mounts = []specs.Mount{sysfs}
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: path}}
			return nil
		}
	}
	ids := Range{100000, PerContainer}
	s := apply(t, network(""), WithUserNamespace(ids, 0, "/"))
	must.Eq(t, []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}, s.Linux.UIDMappings)
	must.Eq(t, s.Linux.UIDMappings, s.Linux.GIDMappings)
	must.SliceContainsFunc(t, s.Linux.Namespaces, specs.UserNamespace,
		func(n specs.LinuxNamespace, kind specs.LinuxNamespaceType) bool { return n.Type == kind })
	must.Eq(t, sysfs, s.Mounts[0])

	s = apply(t, network("/run/netns/x"), WithUserNamespace(ids, 0, "/"))
	must.Eq(t, "bind", s.Mounts[0].Type)
	must.SliceContains(t, s.Mounts[0].Options, "ro")

	// A user that Nomad made up is itself.
	s = apply(t, WithUserNamespace(ids, 80123, "/"))
	must.Eq(t, specs.LinuxIDMapping{ContainerID: 80123, HostID: 80123, Size: 1}, s.Linux.UIDMappings[1])
	s = apply(t, WithUserNamespace(ids, 100001, "/"))
	must.Len(t, 1, s.Linux.UIDMappings)

}

func TestBindDevices(t *testing.T) {
	zero := specs.LinuxDevice{Type: "c", Major: 1, Minor: 5}
	named := func(path string) specs.LinuxDevice { d := zero; d.Path = path; return d }
	s := &specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{named("/dev/zero"), named("/dev/null"), named("/dev/none")}}}
	must.NoError(t, bindDevices(s, "/"))
	must.Eq(t, []specs.LinuxDevice{named("/dev/zero")}, s.Linux.Devices)
	must.Len(t, 2, s.Mounts)
	for i, path := range []string{"/dev/null", "/dev/none"} {
		must.Eq(t, "/dev/zero", s.Mounts[i].Source)
		must.Eq(t, path, s.Mounts[i].Destination)
	}
	s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 254, Minor: 99999}}
	must.ErrorContains(t, bindDevices(s, "/"), "device /dev/x (c 254:99999) has no node")
}

// A driver may have its nodes in a directory of its own, with other permissions than those in /dev.
func TestBindDevices_OfTheDriver(t *testing.T) {
	needs.Root(t, "to make device nodes")
	root := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(root, "dev"), 0o755))
	node := filepath.Join(root, "dev/nvidia7")
	must.NoError(t, unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	s := &specs.Spec{Linux: &specs.Linux{Devices: []specs.LinuxDevice{{Path: "/dev/nvidia7", Type: "c", Major: 1, Minor: 3}}}}
	must.NoError(t, bindDevices(s, root))
	must.Eq(t, node, s.Mounts[0].Source)
}

func TestHandOver(t *testing.T) {
	needs.Root(t, "to give files away")
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "shadow")
	touch(t, outside)
	at := func(name string) string { return filepath.Join(dir, name) }
	must.NoError(t, os.MkdirAll(at("d/e"), 0o700))
	for _, name := range []string{"root", "d/e/app", "earlier", "nomads", "twice"} {
		touch(t, at(name))
	}
	must.NoError(t, os.Chown(at("d/e/app"), 1000, 2000))
	must.NoError(t, os.Chown(at("earlier"), 100007, 100008))
	must.NoError(t, os.Chown(at("nomads"), 80123, 80123))
	must.NoError(t, os.Symlink(outside, at("link")))
	must.NoError(t, os.Link(at("twice"), at("d/again")))

	must.NoError(t, HandOverDir(dir, Range{100000, 3 * PerContainer}, Range{165536, PerContainer}))
	for name, want := range map[string][2]uint32{
		".": {165536, 165536}, "root": {165536, 165536}, "d": {165536, 165536}, "d/e/app": {166536, 167536},
		"earlier": {165543, 165544}, "nomads": {80123, 80123}, "link": {165536, 165536},
		"twice": {0, 0}, "d/again": {0, 0},
	} {
		must.Eq(t, want, ownerOf(t, at(name)), must.Sprint(name))
	}
	must.Eq(t, [2]uint32{0, 0}, ownerOf(t, outside))
}

// ownerOf is the user and group of a file, or of a link itself.
func ownerOf(t *testing.T, file string) [2]uint32 {
	t.Helper()
	var stat syscall.Stat_t
	must.NoError(t, syscall.Lstat(file, &stat))
	return [2]uint32{stat.Uid, stat.Gid}
}

func TestOwnDirs(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "web", AllocDir: "/allocs/a"}
	must.Eq(t, []string{"/allocs/a/web/local", "/allocs/a/web/secrets"}, ownDirs(cfg))
}

func TestHostID(t *testing.T) {
	mappings := append(Range{231072, PerContainer}.Mappings(), specs.LinuxIDMapping{ContainerID: 80123, HostID: 80123, Size: 1})
	for id, want := range map[uint32]uint32{0: 231072, 1000: 232072, 65535: 296607, 65536: 0, 80122: 0, 80123: 80123, 80124: 0} {
		must.Eq(t, want, hostID(mappings, id), must.Sprint(id))
	}
	must.Eq(t, uint32(0), hostID(nil, 5))
}

// apply applies options to an empty spec.
func apply(t *testing.T, opts ...oci.SpecOpts) *specs.Spec {
	t.Helper()
	s := &specs.Spec{Linux: &specs.Linux{}}
	for _, opt := range opts {
		must.NoError(t, opt(t.Context(), nil, nil, s))
	}
	return s
}

func touch(t *testing.T, file string) {
	t.Helper()
	must.NoError(t, os.WriteFile(file, nil, 0o644))
}
