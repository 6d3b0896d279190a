package ocispec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// What the source of a bind mount is mounted with has to be among the mount's options.
func TestKeepLockedFlags(t *testing.T) {
	needs.Root(t, "to mount")
	mounted := func(flags uintptr) string {
		dir := t.TempDir()
		must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", flags, ""))
		t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		return dir
	}
	restricted := mounted(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY | unix.MS_NOATIME)
	noexec := mounted(unix.MS_NOEXEC)
	plain := mounted(0)
	for _, c := range []struct{ kind, source, options, want string }{
		{"bind", noexec, "rw nosuid nodev", "rw nosuid nodev noexec"},
		{"", noexec, "ro nosuid bind", "ro nosuid bind noexec"},
		{"", noexec, "rbind", "rbind noexec"},
		{"bind", noexec, "noexec ro", "noexec ro"},
		{"bind", restricted, "rw", "rw ro nosuid nodev noexec"},
		{"bind", restricted, "ro relatime", "ro relatime nosuid nodev noexec noatime"},
		{"bind", plain, "rw", "rw"},
		{"bind", "/no/such/file", "ro", "ro"},
		{"tmpfs", restricted, "rw", "rw"},
	} {
		for _, namespace := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.PIDNamespace} {
			options := slices.Clip(strings.Fields(c.options))
			spec := &specs.Spec{
				Mounts: []specs.Mount{{Type: c.kind, Source: c.source, Options: options}},
				Linux:  &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: namespace}}},
			}
			ocispec.KeepLockedFlags(spec)
			want := c.want
			if namespace != specs.UserNamespace {
				want = c.options
			}
			must.Eq(t, strings.Fields(want), spec.Mounts[0].Options, must.Sprintf("%+v", c))
		}
	}
	ocispec.KeepLockedFlags(&specs.Spec{})
}
