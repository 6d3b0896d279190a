package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tranche-gpu/tranche/claim"
)

// defaultPath is what a process gets that neither the image nor the task gives a PATH.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// withImageEnv sets the environment that the image gives, which never holds a claim: a token in an image would be a
// stolen one.
func withImageEnv(config ocispec.ImageConfig) oci.SpecOpts {
	env := []string{defaultPath}
	for _, entry := range claim.WithoutTokens(config.Env) {
		if strings.HasPrefix(entry, "PATH=") {
			env[0] = entry
			continue
		}
		env = append(env, entry)
	}
	return oci.WithEnv(env)
}

// withTaskEnv adds the task's environment, without its claim tokens: what the container gets of a claim it gets by
// mounts, and a token in its environment is one that its programs could show elsewhere.
func withTaskEnv(cfg *drivers.TaskConfig) oci.SpecOpts {
	return oci.WithEnv(claim.WithoutTokens(cfg.EnvList()))
}

// withArgs sets what runs: the options entrypoint, command and args, each instead of the image's own where given.
func withArgs(options *TaskConfig, config ocispec.ImageConfig, image string) oci.SpecOpts {
	args := processArgs(options, config)
	return specOption(func(s *Spec) error {
		switch {
		case len(args) > 0:
		case options.clearsEntrypoint():
			return errors.New("option entrypoint = [\"\"]: the image's entrypoint and command are not used; set the option command")
		default:
			return fmt.Errorf("image %q has neither an entrypoint nor a command; set the option command", image)
		}
		s.Process.Args = args
		return nil
	})
}

// clearsEntrypoint reports whether the task wants neither the image's entrypoint nor another, as docker has it.
func (c *TaskConfig) clearsEntrypoint() bool { return len(c.Entrypoint) == 1 && c.Entrypoint[0] == "" }

func processArgs(options *TaskConfig, config ocispec.ImageConfig) []string {
	entrypoint, command := config.Entrypoint, config.Cmd
	switch {
	case options.clearsEntrypoint():
		entrypoint, command = nil, nil
	case len(options.Entrypoint) > 0:
		entrypoint, command = options.Entrypoint, nil
	}
	switch {
	case options.Command != "":
		command = append([]string{options.Command}, options.Args...)
	case len(options.Args) > 0:
		command = options.Args
	}
	return append(append([]string{}, entrypoint...), command...)
}

// withWorkDir sets the working directory: the task's, else the image's, else the root.
func withWorkDir(task, image string) oci.SpecOpts {
	for _, dir := range []string{task, image} {
		if dir != "" {
			return oci.WithProcessCwd(dir)
		}
	}
	return oci.WithProcessCwd("/")
}

// withTTY gives the process a terminal.
func withTTY(tty bool) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if tty {
			s.Process.Terminal = true
			s.Process.Env = AddTerm(s.Process.Env)
		}
		return nil
	})
}

// AddTerm adds TERM, the kind of terminal that a process has, to an environment without one.
func AddTerm(env []string) []string {
	if slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "TERM=") }) {
		return env
	}
	return append(env, "TERM=xterm")
}

// withReadonlyRootfs lets the container write to mounts only.
func withReadonlyRootfs(readonly bool) oci.SpecOpts {
	if readonly {
		return oci.WithRootFSReadonly()
	}
	return specOption(func(*Spec) error { return nil })
}

// checkProcess checks the options about the process.
func (c *TaskConfig) checkProcess(*Config) error {
	return errors.Join(
		c.checkWorkDir(),
		c.checkGroupAdd(),
		c.checkHostname(),
		c.checkInit(),
		c.checkUlimit(),
		c.checkSysctl(),
		checkOOMScoreAdj("option oom_score_adj", c.OOMScoreAdj),
		c.checkLabels(),
	)
}

// checkProcess checks the plugin's options about processes, their resources and runtimes.
func (c *Config) checkProcess() error {
	return errors.Join(
		c.checkRuntimes(),
		c.checkInit(),
		c.checkPidsLimit(),
		checkOOMScoreAdj("plugin option oom_score_adj", c.OOMScoreAdj),
		c.checkExtraLabels(),
	)
}

func (c *TaskConfig) checkWorkDir() error {
	if c.WorkDir != "" && !path.IsAbs(c.WorkDir) {
		return fmt.Errorf("option work_dir = %q: must be an absolute path in the container", c.WorkDir)
	}
	return nil
}
