package spec

import (
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
)

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
