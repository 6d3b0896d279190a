package spec

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func namespacesOf(s *Spec) map[specs.LinuxNamespaceType]bool {
	all := map[specs.LinuxNamespaceType]bool{}
	for _, n := range s.Linux.Namespaces {
		all[n.Type] = true
	}
	return all
}

func TestWithNamespaces(t *testing.T) {
	start := specOption(func(s *Spec) error {
		for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace} {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
		}
		s.Hostname = "web"
		s.Mounts = []specs.Mount{{Type: "tmpfs", Destination: "/dev/shm"}}
		return nil
	})
	s := apply(t, start, withNamespaces(&TaskConfig{PidMode: "private"}, true))
	must.MapLen(t, 4, namespacesOf(s))
	must.Eq(t, "web", s.Hostname)

	s = apply(t, start, withNamespaces(&TaskConfig{PidMode: "host", IPCMode: "host", UTSMode: "host", CgroupNS: "host"}, true))
	must.MapEmpty(t, namespacesOf(s))
	must.Eq(t, "", s.Hostname)
	must.Len(t, 2, s.Mounts)
	must.Eq(t, "bind", s.Mounts[0].Type)

	s = apply(t, start, withNamespaces(&TaskConfig{IPCMode: "host"}, false))
	must.MapLen(t, 2, namespacesOf(s))
	must.False(t, namespacesOf(s)[specs.IPCNamespace])
	must.False(t, namespacesOf(s)[specs.CgroupNamespace])
	s = apply(t, start, withNamespaces(&TaskConfig{CgroupNS: "private"}, false))
	must.True(t, namespacesOf(s)[specs.CgroupNamespace])
}
