package spec

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/userns"
)

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
