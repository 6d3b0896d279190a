package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const installFiles = "tranche install --from BUILD-FOLDER"

// versionPatience bounds the call of a program that only prints its version.
const versionPatience = 10 * time.Second

// pipePatience is how long what such a program has started may hold its output open.
const pipePatience = time.Second

var runtimeChecks = []check{
	{"runtimes", "configuration", runtimeConfig},
	{"runtimes", "tranche-runtime", runtimeBinary},
	{"runtimes", "hook", runtimeHook},
	{"runtimes", "tranche", runtimeCLI},
	{"runtimes", "next runtime", runtimeNext},
	{"runtimes", "permissions", runtimePermissions},
}

func runtimeConfig(_ context.Context, n *Node) finding {
	if n.ConfigErr != nil {
		return fault(n.ConfigFile, n.ConfigErr.Error(), "correct the file: no container with a GPU starts until then")
	}
	if n.AgentErr != nil {
		return fault(n.ConfigFile, n.AgentErr.Error(), "correct the file: tranche-agent does not start with it")
	}
	if _, err := os.Stat(n.ConfigFile); err != nil {
		return ok(n.ConfigFile, "absent, so everything is as by default")
	}
	return ok(n.ConfigFile, "readable")
}

func runtimeBinary(_ context.Context, n *Node) finding {
	if err := executable(n.RuntimePath); err != nil {
		return fault(n.RuntimePath, err.Error(), installFiles)
	}
	return ok(n.RuntimePath, "executable")
}

func runtimeHook(_ context.Context, n *Node) finding {
	if err := executable(n.Config.HookPath); err != nil {
		return fault(n.Config.HookPath, err.Error(), installFiles+", or set hook_path in "+n.ConfigFile)
	}
	return ok(n.Config.HookPath, "executable")
}

// runtimeCLI looks for the command that asks NVML for tranche-runtime.
func runtimeCLI(_ context.Context, n *Node) finding {
	if err := executable(n.Config.CLIPath); err != nil {
		return fault(n.Config.CLIPath, err.Error(), installFiles+", or set cli_path in "+n.ConfigFile)
	}
	return ok(n.Config.CLIPath, "executable")
}

// executable says why a program cannot be run.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("not executable (%s)", info.Mode())
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err == nil && fs.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("it lies on a file system that is mounted noexec")
	}
	return nil
}

// runtimeNext runs it: one that is there and cannot start is no use either.
func runtimeNext(ctx context.Context, n *Node) finding {
	path, err := n.nextRuntime()
	if err != nil {
		return fault(strings.Join(n.Config.Runtimes, ", "), err.Error(), "install runc or crun, or set runtimes in "+n.ConfigFile+
			" to where they are")
	}
	if same(path, n.RuntimePath) {
		return fault(path, "it is tranche-runtime itself", "set runtimes in "+n.ConfigFile+" to the paths of runc and crun")
	}
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = pipePatience
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fault(path, fmt.Sprintf("--version: %v: %s", err, firstLine(out)), "install runc or crun anew")
	}
	return ok(path, "%s", firstLine(out))
}

// nextRuntime is the first of the configured runtimes that is there.
func (n *Node) nextRuntime() (string, error) {
	names := n.Config.Runtimes
	if n.Config.Runtime != "" {
		names = []string{n.Config.Runtime}
	}
	var errs []error
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err == nil {
			return path, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// runtimePermissions looks who may change what runs as root.
func runtimePermissions(_ context.Context, n *Node) finding {
	files := []string{n.RuntimePath, n.Config.HookPath, n.Config.CLIPath, n.ConfigFile, n.Config.ShadowDir}
	for _, file := range files {
		for _, path := range []string{file, filepath.Dir(file)} {
			info, err := os.Stat(path)
			if err != nil {
				continue // other checks tell
			}
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err == nil && st.Uid != 0 {
				return fault(path, fmt.Sprintf("it belongs to user %d, who can become root by it", st.Uid), "chown root "+path)
			}
			if info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
				return fault(path, fmt.Sprintf("others than root may write it (%s)", info.Mode()), "chmod go-w "+path)
			}
		}
	}
	return ok(strings.Join(files, ", "), "only root may write them")
}

func same(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
