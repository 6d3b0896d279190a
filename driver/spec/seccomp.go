package spec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	containerdseccomp "github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/internal/namedfile"
	"github.com/tranche-gpu/tranche/internal/rootfile"
)

// seccompBuiltin is what security_opt calls containerd's own profile.
const seccompBuiltin = "builtin"

// maxProfileBytes bounds what is read of a profile; docker's own has 14 KiB.
const maxProfileBytes = 1 << 20

// withSeccomp filters the system calls of the container: by the profile that the task names, else by the node's
// seccomp_profile, else by containerd's own. A privileged task that names none has no filter. It comes after the
// capabilities, as profiles let through what a capability is for.
func withSeccomp(cfg *drivers.TaskConfig, options *TaskConfig, plugin *Config) oci.SpecOpts {
	return specOption(func(s *Spec) (err error) {
		choice := options.security().seccomp
		switch {
		case choice == unconfined, choice == "" && options.Privileged:
			s.Linux.Seccomp = nil
		case choice == seccompBuiltin, choice == "" && plugin.SeccompProfile == "":
			return containerdseccomp.WithDefaultProfile()(nil, nil, nil, s)
		case choice == "":
			s.Linux.Seccomp, err = readSeccompProfile(s, func() (*os.File, error) { return os.Open(plugin.SeccompProfile) })
			return prefixed("plugin option seccomp_profile", plugin.SeccompProfile, err)
		case inTaskDirs(choice):
			s.Linux.Seccomp, err = ownSeccompProfile(s, cfg, choice)
		default:
			s.Linux.Seccomp, err = readSeccompProfile(s, func() (*os.File, error) {
				return rootfile.Open(plugin.SeccompDir, choice)
			})
		}
		return prefixed("option security_opt", "seccomp="+choice, err)
	})
}

func prefixed(option, value string, err error) error {
	if err != nil {
		return fmt.Errorf("%s = %q: %w", option, value, err)
	}
	return nil
}

// inTaskDirs reports whether a profile is a path in the task's directories, and not the name of one in seccomp_dir.
func inTaskDirs(profile string) bool { return strings.Contains(profile, "/") }

// taskProfile splits a path such as "local/p.json": one of the task's directories, and a path in it. The form with
// a slash before it is what NOMAD_TASK_DIR makes in a jobspec.
func taskProfile(profile string) (dir, rest string, ok bool) {
	dir, rest, _ = strings.Cut(strings.TrimPrefix(path.Clean("/"+profile), "/"), "/")
	return dir, rest, rest != "" && (dir == "local" || dir == "alloc" || dir == "secrets")
}

// ownSeccompProfile reads a profile from the task's directories. A link that the task left there leads to no file of the
// host's, since it is resolved beneath the directory.
func ownSeccompProfile(s *Spec, cfg *drivers.TaskConfig, choice string) (*specs.LinuxSeccomp, error) {
	dir, rest, _ := taskProfile(choice)
	dirs := cfg.TaskDir()
	host := map[string]string{"local": dirs.LocalDir, "alloc": dirs.SharedAllocDir, "secrets": dirs.SecretsDir}[dir]
	profile, err := readSeccompProfile(s, func() (*os.File, error) { return rootfile.Open(host, rest) })
	if err != nil {
		return nil, err
	}
	if profile.ListenerPath != "" {
		// The runtime would connect to any socket of the host's that the job names, as root.
		return nil, errors.New("the profile has a listenerPath, which a profile of a task's own must not have")
	}
	return profile, nil
}

// readSeccompProfile reads a profile in docker's format, of which the OCI runtime specification's is a part: rules may
// depend on the container's capabilities, the architecture and the kernel.
func readSeccompProfile(s *Spec, open func() (*os.File, error)) (*specs.LinuxSeccomp, error) {
	file, err := open()
	if err != nil {
		// The job's author knows nothing of the path on the host, and may not have to.
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return nil, namedfile.Error("open the profile", err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("open the profile: it is no regular file"), err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxProfileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the profile: %w", err)
	}
	if len(data) > maxProfileBytes {
		return nil, fmt.Errorf("read the profile: it is larger than %d bytes", maxProfileBytes)
	}
	return parseSeccompProfile(s, data)
}

func parseSeccompProfile(s *Spec, data []byte) (*specs.LinuxSeccomp, error) {
	profile, err := seccomp.LoadProfile(string(data), s)
	if err != nil {
		return nil, fmt.Errorf("read the profile: %w; it must be JSON as for docker, with defaultAction and syscalls", err)
	}
	if profile == nil || profile.DefaultAction == "" {
		// It would mean no filter at all.
		return nil, errors.New("read the profile: it has no defaultAction; it must be JSON as for docker, with " +
			"defaultAction and syscalls")
	}
	return profile, nil
}

// checkSeccomp checks the seccomp profile in security_opt. A profile of the task's own may let everything through, so it
// takes the same permission as none.
func (o *securityOptions) checkSeccomp(plugin *Config) error {
	const forms = `may be "builtin", "unconfined", the name of a profile in the plugin's seccomp_dir, such as "web.json", ` +
		`or a path in the task's directories, such as "local/web.json"`
	value := "seccomp=" + o.seccomp
	switch {
	case o.seccomp == "", o.seccomp == seccompBuiltin, o.seccomp == unconfined:
		return nil
	case !inTaskDirs(o.seccomp) && (o.seccomp == "." || o.seccomp == ".."):
		return fmt.Errorf("option security_opt = %q: %s", value, forms)
	case !inTaskDirs(o.seccomp) && plugin.SeccompDir == "":
		return fmt.Errorf("option security_opt = %q: %s; the plugin has no seccomp_dir on this node", value, forms)
	case !inTaskDirs(o.seccomp):
		return nil
	}
	if _, _, ok := taskProfile(o.seccomp); !ok {
		return fmt.Errorf("option security_opt = %q: %s", value, forms)
	}
	if !plugin.AllowPrivileged {
		return fmt.Errorf("option security_opt = %q: a profile of the task's own could let every system call through, and "+
			"this node allows no privileged tasks; name a profile in the plugin's seccomp_dir, or the operator can allow "+
			"it with the plugin's allow_privileged", value)
	}
	return nil
}

// checkSeccompProfile makes sure when the plugin starts that the node's own profile is there and can be read.
func (c *Config) checkSeccompProfile() error {
	if c.SeccompDir != "" {
		// The slash makes it an error for what is no directory.
		if _, err := os.Stat(c.SeccompDir + "/"); err != nil {
			return fmt.Errorf("plugin option seccomp_dir = %q: must be a directory with profiles: %w", c.SeccompDir, err)
		}
	}
	if c.SeccompProfile == "" || !filepath.IsAbs(c.SeccompProfile) {
		return nil
	}
	none := &Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}, Linux: &specs.Linux{}}
	_, err := readSeccompProfile(none, func() (*os.File, error) { return os.Open(c.SeccompProfile) })
	return prefixed("plugin option seccomp_profile", c.SeccompProfile, err)
}
