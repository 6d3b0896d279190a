package spec

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestWithUser_Root(t *testing.T) {
	s := apply(t, withUser("", "", "app"))
	must.Eq(t, []uint32{0, 0}, []uint32{s.Process.User.UID, s.Process.User.GID})
}

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
