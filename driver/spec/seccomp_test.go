package spec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"
)

// withCaps stands for the option before the seccomp profile.
func withCaps(names ...string) oci.SpecOpts { return oci.WithCapabilities(names) }

func TestWithSeccomp(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "web", AllocDir: t.TempDir()}
	local, operators := cfg.TaskDir().LocalDir, t.TempDir()
	must.NoError(t, os.MkdirAll(local, 0o755))
	for file, text := range map[string]string{
		filepath.Join(operators, "default.json"): `{"defaultAction": "SCMP_ACT_KILL"}`,
		filepath.Join(operators, "named.json"):   `{"defaultAction": "SCMP_ACT_TRAP"}`,
		filepath.Join(local, "own.json"): `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
			{"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}}]}`,
	} {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	plugin := &Config{SeccompDir: operators}
	action := func(plugin *Config, task TaskConfig) specs.LinuxSeccompAction {
		filter := apply(t, withCaps(), withSeccomp(cfg, &task, plugin)).Linux.Seccomp
		if filter == nil {
			return ""
		}
		return filter.DefaultAction
	}
	containerds := seccomp.DefaultProfile(apply(t, withCaps())).DefaultAction
	must.Eq(t, containerds, action(plugin, TaskConfig{}))
	must.Eq(t, "", action(plugin, TaskConfig{Privileged: true}))
	must.Eq(t, containerds, action(plugin, TaskConfig{Privileged: true, SecurityOpt: []string{"seccomp=builtin"}}))
	must.Eq(t, "", action(plugin, TaskConfig{SecurityOpt: []string{"seccomp=unconfined"}}))
	must.Eq(t, specs.ActTrap, action(plugin, TaskConfig{SecurityOpt: []string{"seccomp=named.json"}}))
	plugin.SeccompProfile = filepath.Join(operators, "default.json")
	must.Eq(t, specs.ActKill, action(plugin, TaskConfig{}))
	must.Eq(t, containerds, action(plugin, TaskConfig{SecurityOpt: []string{"seccomp=builtin"}}))

	// A rule for a capability is there for who has it.
	own := &TaskConfig{SecurityOpt: []string{"seccomp=/local/own.json"}}
	must.SliceEmpty(t, apply(t, withCaps(), withSeccomp(cfg, own, plugin)).Linux.Seccomp.Syscalls)
	must.Len(t, 1, apply(t, withCaps("CAP_SYS_ADMIN"), withSeccomp(cfg, own, plugin)).Linux.Seccomp.Syscalls)
}

func TestWithSeccomp_BadProfiles(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "web", AllocDir: t.TempDir()}
	local := cfg.TaskDir().LocalDir
	must.NoError(t, os.MkdirAll(filepath.Join(local, "dir.json"), 0o755))
	outside := filepath.Join(t.TempDir(), "good.json")
	must.NoError(t, os.WriteFile(outside, []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600))
	must.NoError(t, os.Symlink(outside, filepath.Join(local, "link.json")))
	for name, text := range map[string]string{
		"text.json":     "allow everything",
		"empty.json":    "{}",
		"large.json":    `{"defaultAction": "SCMP_ACT_ALLOW"}` + string(make([]byte, maxProfileBytes)),
		"listener.json": `{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/host.sock"}`,
	} {
		must.NoError(t, os.WriteFile(filepath.Join(local, name), []byte(text), 0o600))
	}
	for profile, want := range map[string]string{
		"local/none.json": "no such file", "secrets/none.json": "no such file", "local/dir.json": "no regular file",
		"local/link.json": "open the profile", "local/text.json": "must be JSON as for docker",
		"local/empty.json": "no defaultAction", "local/large.json": "larger than", "local/listener.json": "listenerPath",
	} {
		task := &TaskConfig{SecurityOpt: []string{"seccomp=" + profile}}
		_, err := tryApply(withCaps(), withSeccomp(cfg, task, &Config{}))
		must.ErrorContains(t, err, want, must.Sprint(profile))
		must.ErrorContains(t, err, `option security_opt = "seccomp=`+profile)
		must.StrNotContains(t, err.Error(), cfg.AllocDir)
	}
}
