package spec

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/drivers/shared/capabilities"
	"github.com/hashicorp/nomad/plugins/drivers"
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
		{"a capability that is not allowed", strict, TaskConfig{CapAdd: []string{"NET_RAW", "chown"}},
			[]string{`option cap_add = ["NET_RAW" "chown"]`, "does not allow net_raw,", "allow_caps", "sys_chroot"}},
		{"all capabilities", strict, TaskConfig{CapAdd: []string{"all"}}, []string{"option cap_add", "sys_admin"}},

		{"an unknown security option", open, opt("selinux=on"),
			[]string{`option security_opt = "selinux=on"`, "not known", "seccomp=PROFILE"}},
		{"two profiles", open, opt("seccomp=unconfined", "seccomp=builtin"),
			[]string{`option security_opt = "seccomp=builtin"`, "said twice"}},
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
		{"a size for the host's memory", open, TaskConfig{IPCMode: "host", ShmSize: "1MiB"},
			[]string{`option shm_size = "1MiB"`, "ipc_mode"}},

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
			[]string{"plugin option allow_host_namespaces", `"user" is not known`, `"pid" "ipc" "uts" "cgroup"`}},
		{"a pattern", Config{AllowDevices: []string{"/dev/[a"}}, []string{`plugin option allow_devices = "/dev/[a"`}},
		{"a pattern of other files", Config{AllowDevices: []string{"/etc/*"}}, []string{`allow_devices = "/etc/*"`}},
		{"no profile", Config{SeccompProfile: filepath.Join(dir, "none")}, []string{"plugin option seccomp_profile", "no such file"}},
		{"a directory for a profile", Config{SeccompProfile: dir}, []string{"no regular file"}},
		{"an empty profile", Config{SeccompProfile: profile}, []string{"seccomp_profile", "defaultAction"}},
		{"no directory of profiles", Config{SeccompDir: profile}, []string{"plugin option seccomp_dir", "directory"}},
		{"a range that is none", Config{UsernsRange: "100000"}, []string{`userns_range = "100000"`, "FIRST:COUNT"}},
		{"a range with the host's users", Config{UsernsRange: "1000:655360"}, []string{"65536 or later"}},
		{"a range for nobody", Config{UsernsRange: "100000:65535"}, []string{"65536 IDs at least"}},
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

func TestWithCapabilities(t *testing.T) {
	nomads := capabilities.NomadDefaults().Slice(false)
	cases := []struct {
		name      string
		allow     []string
		add, drop []string
		want      []string
	}{
		{"Nomad's", nomads, nil, nil, capabilities.NomadDefaults().Slice(true)},
		{"fewer by the operator", []string{"chown", "net_raw"}, nil, nil, []string{"CAP_CHOWN"}},
		{"one more", []string{"all"}, []string{"net_raw"}, []string{"all"}, []string{"CAP_NET_RAW"}},
		{"none", nomads, nil, []string{"ALL"}, []string{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := apply(t, withCapabilities(&TaskConfig{CapAdd: c.add, CapDrop: c.drop}, &Config{AllowCaps: c.allow}))
			must.Eq(t, &specs.LinuxCapabilities{Bounding: c.want, Effective: c.want, Permitted: c.want}, s.Process.Capabilities)
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

func TestWithAppArmor(t *testing.T) {
	list := filepath.Join(t.TempDir(), "profiles")
	must.NoError(t, os.WriteFile(list, []byte("docker-default (enforce)\nmy profile (complain)\n"), 0o600))
	host := appArmorHost{supported: func() bool { return true }, profiles: list, withDefault: oci.WithApparmorProfile}
	without := appArmorHost{supported: func() bool { return false }}
	profile := func(host appArmorHost, task TaskConfig) string {
		return apply(t, withAppArmor(&task, host)).Process.ApparmorProfile
	}
	named := []string{"apparmor=docker-default"}
	must.Eq(t, "tranche-default", profile(host, TaskConfig{}))
	must.Eq(t, "", profile(host, TaskConfig{Privileged: true}))
	must.Eq(t, "docker-default", profile(host, TaskConfig{Privileged: true, SecurityOpt: named}))
	must.Eq(t, "unconfined", profile(host, TaskConfig{SecurityOpt: []string{"apparmor=unconfined"}}))
	must.Eq(t, "", profile(without, TaskConfig{}))
	must.Eq(t, "", profile(without, TaskConfig{SecurityOpt: []string{"apparmor=unconfined"}}))

	for name, want := range map[string]string{
		"docker-default": "", "my profile": "", "tranche-default": "", "unconfined": "",
		"docker": "no such profile is loaded",
	} {
		err := (&securityOptions{apparmor: name}).checkAppArmor(host)
		if want == "" {
			must.NoError(t, err)
			continue
		}
		must.ErrorContains(t, err, want)
	}
}

func TestWithSELinux(t *testing.T) {
	cases := []struct {
		opts           []string
		process, mount string
	}{
		{nil, "", ""},
		{[]string{"label=disable"}, "", ""},
		{[]string{"label=type:svirt_t"}, "system_u:system_r:svirt_t:s0", "system_u:object_r:container_file_t:s0"},
		{[]string{"label=level:s0:c1,c2", "label=user:u", "label=role:r"}, "u:r:container_t:s0:c1,c2",
			"u:object_r:container_file_t:s0:c1,c2"},
		{[]string{"label:type:spc_t"}, "system_u:system_r:spc_t:s0", "system_u:object_r:container_file_t:s0"},
	}
	for _, c := range cases {
		s := apply(t, withSELinux(&TaskConfig{SecurityOpt: c.opts}))
		must.Eq(t, c.process, s.Process.SelinuxLabel)
		must.Eq(t, c.mount, s.Linux.MountLabel)
	}
	labelled, err := parseSecurityOptions([]string{"label=type:svirt_t"})
	must.NoError(t, err)
	must.NoError(t, labelled.label.check(true))
	must.Error(t, labelled.label.check(false))
}

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
