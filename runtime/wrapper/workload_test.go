package wrapper

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

func TestWorkload_OfTheEnvironment(t *testing.T) {
	env := map[string]string{
		"NOMAD_NAMESPACE": "ml", "NOMAD_JOB_ID": "web/dispatch-1", "NOMAD_JOB_PARENT_ID": "web", "NOMAD_GROUP_NAME": "gpu",
		"NOMAD_TASK_NAME": "train", "NOMAD_ALLOC_ID": "3f2a91b0", "SECRET": "secret",
	}
	inv := invocation{id: "c1"}
	must.Eq(t, claim.Workload{
		Namespace: "ml", Job: "web/dispatch-1", ParentJob: "web", Group: "gpu", Task: "train", Allocation: "3f2a91b0",
	}, inv.workload(env, &specFile{spec: &specs.Spec{}}))
}

// The allocation's directory is known from what Nomad's drivers mount of it.
func TestWorkload_AllocDir(t *testing.T) {
	inv := invocation{id: "c1"}
	env := map[string]string{"NOMAD_ALLOC_ID": "3f2a91b0"}
	for source, want := range map[string]string{
		"/opt/nomad/alloc/3f2a91b0/alloc": "/opt/nomad/alloc/3f2a91b0", "/opt/nomad/alloc/other/alloc": "", "/srv/data": "",
	} {
		spec := &specs.Spec{Mounts: []specs.Mount{{Destination: "/proc"}, {Destination: "/alloc", Source: source}}}
		must.Eq(t, want, inv.workload(env, &specFile{spec: spec}).AllocDir)
	}
}

func TestWorkload_NameOfTheContainer(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	docker := filepath.Join(t.TempDir(), "docker/containers")
	runtimetest.WriteFile(t, filepath.Join(docker, id, "config.v2.json"), `{"ID": "`+id+`", "Name": "/web", "Config": {"Env": ["A=1"]}}`)
	runtimetest.WriteFile(t, filepath.Join(docker, "other/config.v2.json"), `{"ID": "another", "Name": "/other"}`)
	mount := func(destination, source string) []specs.Mount {
		return []specs.Mount{{Destination: destination, Source: source}}
	}
	for name, tc := range map[string]struct {
		spec specs.Spec
		id   string
		want string
	}{
		"none":                   {id: id},
		"nerdctl":                {specs.Spec{Annotations: map[string]string{"nerdctl/name": "web"}}, id, "web"},
		"CRI":                    {specs.Spec{Annotations: map[string]string{"io.kubernetes.cri.container-name": "web"}}, id, "web"},
		"Docker":                 {specs.Spec{Mounts: mount("/etc/hosts", filepath.Join(docker, id, "hosts"))}, id, "web"},
		"Docker, in a network":   {specs.Spec{Mounts: mount("/etc/resolv.conf", filepath.Join(docker, "other/resolv.conf"))}, id, "web"},
		"Docker, another's file": {specs.Spec{Mounts: mount("/etc/hosts", filepath.Join(docker, "other/hosts"))}, "other", ""},
		"a file of the user's":   {specs.Spec{Mounts: mount("/etc/hosts", filepath.Join(docker, id))}, id, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inv := invocation{id: tc.id}
			must.Eq(t, tc.want, inv.workload(nil, &specFile{spec: &tc.spec}).ContainerName)
		})
	}
}

func TestWorkload_NameOfPodmansMonitor(t *testing.T) {
	inv := invocation{id: "c1"}
	for _, tc := range []struct{ command, want string }{
		{"/usr/bin/conmon --api-version 1 -c c1 -u c1 -r /usr/bin/tranche-runtime -n web --exit-dir /x", "web"},
		{"/usr/bin/conmon --cid c1 --name web", "web"},
		{"/usr/bin/conmon -c c2 -n web", ""},
		{"/usr/bin/conmon -c c1 -n", ""},
		{"bash -c c1 -n web", ""},
		{"", ""},
	} {
		must.Eq(t, tc.want, inv.nameOfMonitor(strings.Split(tc.command, " ")), must.Sprint(tc.command))
	}
}
