package ociruntime

import (
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/userns"
)

func TestParse(t *testing.T) {
	cases := map[string]Runtime{
		"runc":                   {Shim: Runc},
		"io.containerd.runc.v2":  {Shim: Runc},
		"crun":                   {Shim: Runc, Program: "crun"},
		"/opt/crun-1.20/crun":    {Shim: Runc, Program: "/opt/crun-1.20/crun"},
		"io.containerd.kata.v2":  {Shim: "io.containerd.kata.v2"},
		"io.containerd.runsc.v1": {Shim: "io.containerd.runsc.v1"},
	}
	for name, want := range cases {
		got, err := Parse(name)
		must.NoError(t, err)
		must.Eq(t, name, got.Name)
		must.True(t, got.Same(want))
	}
	for _, name := range []string{"", "./crun", "bin/crun", "crun ", "-crun", "a..b", "io.containerd."} {
		_, err := Parse(name)
		must.ErrorContains(t, err, "a containerd shim")
	}
	kata, err := Parse("io.containerd.kata.v2")
	must.NoError(t, err)
	must.Eq(t, "containerd-shim-kata-v2", kata.ShimProgram())
	must.Nil(t, kata.Options(userns.IOOwner{UID: 7, GID: 8}))

	// The cgroup is named by its path, on both versions: never in the words of systemd.
	crun, err := Parse("crun")
	must.NoError(t, err)
	given, ok := crun.Options(userns.IOOwner{UID: 7, GID: 8}).(*options.Options)
	must.True(t, ok)
	must.Eq(t, "crun", given.GetBinaryName())
	must.Eq(t, [2]uint32{7, 8}, [2]uint32{given.GetIoUid(), given.GetIoGid()})
	must.False(t, given.GetSystemdCgroup())
}
