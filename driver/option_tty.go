package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// withTTY gives the process a terminal.
func withTTY(tty bool) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		if tty {
			s.Process.Terminal = true
			s.Process.Env = withTerm(s.Process.Env)
		}
		return nil
	})
}

// withTerm says what kind of terminal a process has, unless its environment says so already.
func withTerm(env []string) []string {
	if slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "TERM=") }) {
		return env
	}
	return append(env, "TERM=xterm")
}

// makeStdin makes the pipe that is the stdin of an interactive task. The shim opens both of its ends while it creates the
// container and holds them as long as that lives; afterwards nobody needs the name, and remove takes it away.
func makeStdin(cfg *drivers.TaskConfig) (file string, remove func(), err error) {
	file = filepath.Join(cfg.TaskDir().Dir, ".stdin.fifo")
	// One is there if this plugin died while it started the task.
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return "", nil, fmt.Errorf("make the task's stdin: %w", err)
	}
	if err := unix.Mkfifo(file, 0o600); err != nil {
		return "", nil, fmt.Errorf("make the task's stdin %s: %w", file, err)
	}
	return file, func() { _ = os.Remove(file) }, nil
}
