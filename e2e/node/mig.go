package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A container finds the state of its simulated GPUs at stateMount. The node's CDI specification brings it there, but one
// that is generated, for an instance by MIG that was made a moment ago say, knows nothing of simulations. So the node's
// OCI runtime adds it to every container that has GPUs.
const stateMount = "/run/simgpu"

// What the program is told that stands in front of runc: the real one, and where the state lies.
const (
	realRuntimeEnv = "TRANCHE_E2E_REAL_RUNTIME"
	stateDirEnv    = "TRANCHE_E2E_STATE_DIR"
)

// wrapRuntime puts a program in front of runc, and returns the directory that has to come first in PATH.
func (s *Sim) wrapRuntime(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "oci")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	script := fmt.Sprintf("#!/bin/sh\nexport %s='%s' %s='%s'\nexec '%s' \"$@\"\n", realRuntimeEnv, runc, stateDirEnv,
		filepath.Join(s.Root, stateMount), self)
	return bin, os.WriteFile(filepath.Join(bin, "runc"), []byte(script), 0o755)
}

// RuntimeMain does the runtime's work where the process was started as the one of a node, and does not return then.
func RuntimeMain() {
	real := os.Getenv(realRuntimeEnv)
	if real == "" {
		return
	}
	err := addState(os.Args[1:], os.Getenv(stateDirEnv))
	if err == nil {
		env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
			return strings.HasPrefix(pair, realRuntimeEnv+"=") || strings.HasPrefix(pair, stateDirEnv+"=")
		})
		err = unix.Exec(real, append([]string{"runc"}, os.Args[1:]...), env)
	}
	fmt.Fprintln(os.Stderr, "the runtime in front of runc:", err)
	os.Exit(1)
}

// addState adds the state to the container that a command line creates, if it has GPUs.
func addState(args []string, stateDir string) error {
	at := slices.Index(args, "--bundle")
	if !slices.Contains(args, "create") || at < 0 || at+1 == len(args) {
		return nil
	}
	file := filepath.Join(args[at+1], "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), `"/dev/nvidiactl"`) || strings.Contains(string(text), `"`+stateMount+`"`) {
		return nil
	}
	spec := map[string]any{}
	if err := json.Unmarshal(text, &spec); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	mounts, _ := spec["mounts"].([]any)
	spec["mounts"] = append(mounts, map[string]any{
		"destination": stateMount, "type": "bind", "source": stateDir, "options": []string{"rbind", "rw", "nosuid", "nodev"},
	})
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// mountProc lays the kernel module's part of /proc over that of the sandbox, until the node stops.
func (n *Node) mountProc() error {
	const dir = "/proc/driver"
	if err := unix.Mount(filepath.Join(n.Sim.Root, dir), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount what the simulated driver says over %s: %w", dir, err)
	}
	n.OnStop(func(context.Context) error {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		return nil
	})
	return nil
}
