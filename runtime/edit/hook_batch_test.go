package edit

import (
	"testing"

	"github.com/shoenig/test/must"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

func TestBatched(t *testing.T) {
	const ours, other = "/usr/bin/tranche", "/usr/bin/nvidia-cdi-hook"
	hook := func(kind, path string, args ...string) *cdispecs.Hook {
		return &cdispecs.Hook{HookName: kind, Path: path, Args: append([]string{"x", "cdi-hook"}, args...), Env: hookEnv()}
	}
	ten := 10
	patient := hook("createContainer", ours, "chmod", "f")
	patient.Timeout = &ten
	elsewhere := hook("createContainer", ours, "noop")
	elsewhere.Timeout = &ten
	elsewhere.Env = []string{"PATH=/opt"}
	edits := &cdi.ContainerEdits{ContainerEdits: &cdispecs.ContainerEdits{Hooks: []*cdispecs.Hook{
		hook("createContainer", ours, "create-symlinks", "--link", `a"b::c`),
		hook("createRuntime", ours, "noop"),
		hook("createContainer", ours, "update-ldcache"),
		hook("createContainer", other, "update-ldcache"),
		hook("createContainer", ours, "chmod"),
		patient,
		elsewhere,
	}}}
	var got [][]string
	for _, hook := range batched(edits, ours).Hooks {
		got = append(got, append([]string{hook.HookName, hook.Path}, hook.Args...))
	}
	must.Eq(t, [][]string{
		{"createContainer", ours, "x", "cdi-hook", "batch", `["create-symlinks","--link","a\"b::c"]`, `["update-ldcache"]`},
		{"createRuntime", ours, "x", "cdi-hook", "batch", `["noop"]`},
		{"createContainer", other, "x", "cdi-hook", "update-ldcache"},
		{"createContainer", ours, "x", "cdi-hook", "batch", `["chmod"]`},
		{"createContainer", ours, "x", "cdi-hook", "batch", `["chmod","f"]`},
		{"createContainer", ours, "x", "cdi-hook", "batch", `["noop"]`},
	}, got)
}
