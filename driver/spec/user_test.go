package spec

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/userns"
)

func TestDynamicUser(t *testing.T) {
	on, off := &Config{DynamicWorkloadUsers: true}, &Config{}
	id, ok := on.dynamicUser("nomad-80123")
	must.True(t, ok)
	must.Eq(t, 80123, id)
	_, ok = off.dynamicUser("nomad-80123")
	must.False(t, ok)
	for _, name := range []string{"", "nomad", "nomad-", "nomad-x", "nomad--1", "nomad-2147483648", "app", "80123"} {
		_, ok := on.dynamicUser(name)
		must.False(t, ok, must.Sprint(name))
	}
	s := apply(t, withTaskUser("nomad-80123", "app", "image", on))
	must.Eq(t, []uint32{80123, 80123}, []uint32{s.Process.User.UID, s.Process.User.GID})
}

// What the user is on the host, with a user namespace and without.
func TestWithUserNamespace_OfADynamicUser(t *testing.T) {
	ids := &userns.Range{First: 100000, Count: userns.PerContainer}
	s := apply(t, withUserNamespace(ids, "nomad-80123", &Config{DynamicWorkloadUsers: true}))
	must.Eq(t, specs.LinuxIDMapping{ContainerID: 80123, HostID: 80123, Size: 1}, s.Linux.UIDMappings[1])
	s = apply(t, withUserNamespace(ids, "nomad-80123", &Config{}))
	must.Len(t, 1, s.Linux.UIDMappings)
	s = apply(t, withUserNamespace(ids, "nomad-2147483648", &Config{DynamicWorkloadUsers: true}))
	must.Len(t, 1, s.Linux.UIDMappings)
	s = apply(t, withUserNamespace(nil, "", &Config{}))
	must.Len(t, 0, s.Linux.Namespaces)
}
