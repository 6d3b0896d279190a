package spec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/ociruntime"
)

// lenient is a plugin whose operator allows everything that the options about security can ask for.
func lenient(t *testing.T) *Config {
	return &Config{
		AllowPrivileged:     true,
		AllowCaps:           []string{"all"},
		AllowDevices:        []string{"/dev/*", "/dev/net/*", "vendor.com/*=*"},
		AllowHostNamespaces: []string{"pid", "ipc", "uts", "cgroup"},
		SeccompDir:          t.TempDir(),
		UsernsRange:         "1000000:655360",
	}
}

func TestCheckSecurity_BadInput(t *testing.T) {
	strict := &Config{AllowCaps: capabilities.NomadDefaults().Slice(false), UsernsRange: "1000000:655360"}
	open := lenient(t)
	opt := func(entries ...string) TaskConfig { return TaskConfig{SecurityOpt: entries} }
	cases := []struct {
		name   string
		plugin *Config
		task   TaskConfig
		want   []string
	}{
		{"privileged", strict, TaskConfig{Privileged: true}, []string{"option privileged = true", "allow_privileged"}},
		{"an unknown capability", open, TaskConfig{CapAdd: []string{"net_amin"}},
			[]string{`option cap_add = ["net_amin"]`, "no capability is called net_amin", `"net_bind_service"`}},
		{"an unknown capability to drop", open, TaskConfig{CapDrop: []string{"CAP_CHWON"}},
			[]string{`option cap_drop = ["CAP_CHWON"]`, "chwon"}},
		{"unknown capabilities in both options", open, TaskConfig{CapAdd: []string{"net_rwa"}, CapDrop: []string{"chwon"}},
			[]string{`option cap_add = ["net_rwa"]`, `option cap_drop = ["chwon"]`}},
		{"a capability that is not allowed", strict, TaskConfig{CapAdd: []string{"NET_RAW", "chown"}},
			[]string{`option cap_add = ["NET_RAW" "chown"]`, "does not allow net_raw,", "allow_caps", "sys_chroot"}},
		{"all capabilities", strict, TaskConfig{CapAdd: []string{"all"}}, []string{"option cap_add", "sys_admin"}},

		{"an unknown security option", open, opt("selinux=on"),
			[]string{`option security_opt = "selinux=on"`, "unknown option", "seccomp=PROFILE"}},
		{"two profiles", open, opt("seccomp=unconfined", "seccomp=builtin"),
			[]string{`option security_opt = "seccomp=builtin"`, "set twice"}},
		{"new privileges, perhaps", open, opt("no-new-privileges=maybe"), []string{`"true" or "false"`}},
		{"an empty profile", open, opt("seccomp="), []string{"seccomp has no value"}},
		{"no filter", strict, opt("seccomp=unconfined"), []string{`= "seccomp=unconfined"`, "allow_privileged"}},
		{"no AppArmor", strict, opt("apparmor:unconfined"), []string{`= "apparmor=unconfined"`, "allow_privileged"}},
		{"no masked paths", strict, opt("systempaths=unconfined"), []string{"systempaths", "allow_privileged"}},
		{"masked paths in another way", open, opt("systempaths=all"), []string{"unconfined"}},
		{"a profile of the task's own", strict, opt("seccomp=local/p.json"),
			[]string{`"seccomp=local/p.json"`, "allow_privileged", "seccomp_dir"}},
		{"a profile of the host's", open, opt("seccomp=/etc/shadow"), []string{"seccomp=/etc/shadow", "task's directories"}},
		{"a profile above the task's directories", open, opt("seccomp=local/../../p.json"),
			[]string{"seccomp=local/../../p.json", "task's directories"}},
		{"a profile by name without a directory", strict, opt("seccomp=p.json"), []string{"seccomp=p.json", "seccomp_dir"}},
		{"no name of a profile", open, opt("seccomp=.."), []string{"seccomp=..", "seccomp_dir"}},
		{"a profile of AppArmor without it", open, opt("apparmor=mine"), []string{"apparmor=mine", "has no AppArmor"}},
		{"a label without SELinux", open, opt("label=type:svirt_t"), []string{"label=type:svirt_t", "has no SELinux"}},
		{"an unknown part of a label", open, opt("label=colour:blue"), []string{"label=colour:blue", "user, role, type or level"}},
		{"a label with more in it", open, opt("label=level:s0 x"), []string{`"s0 x" is no level`}},
		{"a label and none", open, opt("label=disable", "label=type:svirt_t"), []string{"contradict"}},

		{"a process namespace", strict, TaskConfig{PidMode: "host"}, []string{`option pid_mode = "host"`, "allow_host_namespaces"}},
		{"an unknown one", open, TaskConfig{IPCMode: "shareable"},
			[]string{`option ipc_mode = "shareable"`, `"private"`, `"host"`}},
		{"a host name", strict, TaskConfig{UTSMode: "host"}, []string{`option uts_mode = "host"`, `"uts"`}},
		{"cgroups", strict, TaskConfig{CgroupNS: "host"}, []string{`option cgroupns = "host"`, `"cgroup"`}},

		{"users in another way", open, TaskConfig{Userns: "keep-id"}, []string{`option userns_mode = "keep-id"`, `"auto"`}},
		{"users of its own, and privileged", open, TaskConfig{Userns: "auto", Privileged: true}, []string{"privileged = true"}},
		{"users of its own, and the host's processes", open, TaskConfig{Userns: "auto", PidMode: "host"},
			[]string{`does not go with pid_mode = "host"`}},
		{"users of its own, and the host's IPC", open, TaskConfig{Userns: "auto", IPCMode: "host"},
			[]string{`does not go with ipc_mode = "host"`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := c.task.checkSecurity(c.plugin)
			must.Error(t, err)
			for _, want := range c.want {
				must.ErrorContains(t, err, want)
			}
		})
	}
}

func TestCheckSecurity_GoodInput(t *testing.T) {
	open := lenient(t)
	for _, task := range []TaskConfig{
		{},
		{Privileged: true},
		{CapAdd: []string{"ALL"}, CapDrop: []string{"CAP_CHOWN", "kill"}},
		{SecurityOpt: []string{"no-new-privileges", "seccomp=unconfined", "apparmor=unconfined", "label=disable"}},
		{SecurityOpt: []string{"no-new-privileges:false", "seccomp:builtin"}},
		{SecurityOpt: []string{"seccomp=/local/p.json"}},
		{PidMode: "private", IPCMode: "host", UTSMode: "host", CgroupNS: "host", Userns: "host"},
		{Userns: "auto", UTSMode: "host", CgroupNS: "host"},
	} {
		must.NoError(t, task.checkSecurity(open))
	}
}

func TestConfig_BadSecurity(t *testing.T) {
	dir := t.TempDir()
	profile := filepath.Join(dir, "p.json")
	must.NoError(t, os.WriteFile(profile, []byte(`{"syscalls": []}`), 0o600))
	cases := []struct {
		name   string
		config Config
		want   []string
	}{
		{"a capability", Config{AllowCaps: []string{"flying"}}, []string{"plugin option allow_caps", "flying"}},
		{"a namespace", Config{AllowHostNamespaces: []string{"user"}},
			[]string{"plugin option allow_host_namespaces", `unknown namespace "user"`, `"pid" "ipc" "uts" "cgroup"`}},
		{"a pattern", Config{AllowDevices: []string{"/dev/[a"}}, []string{`plugin option allow_devices = "/dev/[a"`}},
		{"a pattern of other files", Config{AllowDevices: []string{"/etc/*"}}, []string{`allow_devices = "/etc/*"`}},
		{"no profile", Config{SeccompProfile: filepath.Join(dir, "none")}, []string{"plugin option seccomp_profile", "no such file"}},
		{"a directory for a profile", Config{SeccompProfile: dir}, []string{"no regular file"}},
		{"an empty profile", Config{SeccompProfile: profile}, []string{"seccomp_profile", "defaultAction"}},
		{"no directory of profiles", Config{SeccompDir: profile}, []string{"plugin option seccomp_dir", "directory"}},
		{"a range that is none", Config{UsernsRange: "100000"}, []string{`userns_range = "100000"`, "FIRST:COUNT"}},
		{"a range with the host's users", Config{UsernsRange: "1000:655360"}, []string{"65536 or later"}},
		{"a range for nobody", Config{UsernsRange: "100000:65535"}, []string{"at least 65536 IDs"}},
		{"a range past the end", Config{UsernsRange: "4294900000:200000"}, []string{"must end before 4294967295"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.config.ContainerdAddress, c.config.Namespace, c.config.Runtime = defaultAddress, "nomad", ociruntime.Runc
			c.config.Snapshotter, c.config.ImagePullTimeout = DefaultSnapshotter, "5m"
			err := c.config.Check()
			must.Error(t, err)
			for _, want := range c.want {
				must.ErrorContains(t, err, want)
			}
		})
	}
}

func TestWithNoNewPrivileges(t *testing.T) {
	for entry, want := range map[string]bool{
		"no-new-privileges": true, "no-new-privileges:true": true, "no-new-privileges=true": true,
		"no-new-privileges=false": false, "seccomp=builtin": false,
	} {
		s := apply(t, oci.WithNoNewPrivileges, withNoNewPrivileges(&TaskConfig{SecurityOpt: []string{entry}}))
		must.Eq(t, want, s.Process.NoNewPrivileges, must.Sprint(entry))
	}
}

func TestWithPrivileged(t *testing.T) {
	cgroup := specs.Mount{Type: "cgroup", Options: []string{"ro", "nosuid"}}
	start := specOption(func(s *Spec) error {
		s.Linux.MaskedPaths, s.Mounts = []string{"/proc/kcore"}, []specs.Mount{cgroup}
		s.Linux.Seccomp = &specs.LinuxSeccomp{}
		return nil
	})
	s := apply(t, start, withPrivileged(&TaskConfig{Privileged: true}))
	must.SliceEmpty(t, s.Linux.MaskedPaths)
	must.Nil(t, s.Linux.Seccomp)
	must.SliceContains(t, s.Process.Capabilities.Effective, "CAP_SYS_ADMIN")
	must.Eq(t, []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}, s.Linux.Resources.Devices)
	must.Positive(t, len(s.Linux.Devices))
	must.Eq(t, []string{"rw", "nosuid"}, s.Mounts[0].Options)

	s = apply(t, withPrivileged(&TaskConfig{}))
	must.Nil(t, s.Process.Capabilities)
}
