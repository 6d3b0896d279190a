package storage

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

func TestWithVolumes(t *testing.T) {
	cfg := &drivers.TaskConfig{Mounts: []*drivers.MountConfig{
		{HostPath: "/h1", TaskPath: "/t1"},
		{HostPath: "/h2", TaskPath: "/t2", Readonly: true, PropagationMode: "bidirectional"},
	}}
	var made specs.Spec
	must.NoError(t, WithVolumes(cfg)(t.Context(), nil, nil, &made))
	must.Eq(t, []specs.Mount{
		{Type: "bind", Source: "/h1", Destination: "/t1", Options: []string{"rbind", "rprivate", "rw"}},
		{Type: "bind", Source: "/h2", Destination: "/t2", Options: []string{"rbind", "rshared", "ro"}},
	}, made.Mounts)

	cfg.Mounts[0].PropagationMode = "sideways"
	must.ErrorContains(t, WithVolumes(cfg)(t.Context(), nil, nil, &made), `propagation_mode = "sideways"`)
}
