package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"
)

// runtimeConfigFile is where tranche-runtime looks for its configuration. Podman and Docker start runtimes with an
// environment of their own, so no variable leads to another place.
const runtimeConfigFile = "/etc/tranche/config.toml"

// The OCI runtimes that engines know after InstallRuntime, by the names that they have in Docker and Podman.
const (
	RuntimeTranche     = "tranche"      // tranche-runtime, which becomes runc
	RuntimeTrancheCrun = "tranche-crun" // tranche-runtime, which becomes crun
	RuntimeRunc        = "runc"
	RuntimeCrun        = "crun"
)

// Runtimes are the programs of OCI runtimes by name.
type Runtimes map[string]string

// InstallRuntime configures tranche-runtime for this node's GPUs and ledger as a machine's administrator does, in /etc,
// and returns the runtimes that there are to choose from. It works in the sandbox only, whose /etc it covers.
func (n *Node) InstallRuntime() (Runtimes, error) {
	if err := scratchEtc(); err != nil {
		return nil, err
	}
	if !n.Unified {
		if err := HideUnifiedCgroup(); err != nil {
			return nil, err
		}
	}
	if err := n.writeRuntimeConfig(runtimeConfigFile, RuntimeRunc); err != nil {
		return nil, err
	}
	crunConfig := filepath.Join(n.Dir, "crun.toml")
	if err := n.writeRuntimeConfig(crunConfig, RuntimeCrun); err != nil {
		return nil, err
	}
	runtimes := RuntimesOf(n.Config)
	script := fmt.Sprintf("#!/bin/sh\nTRANCHE_CONFIG=%s exec %s \"$@\"\n", crunConfig, runtimes[RuntimeTranche])
	return runtimes, os.WriteFile(runtimes[RuntimeTrancheCrun], []byte(script), 0o755)
}

// RuntimesOf are the runtimes that a node has once InstallRuntime was called.
func RuntimesOf(c Config) Runtimes {
	return Runtimes{
		RuntimeTranche: filepath.Join(c.BuildDir, "bin/tranche-runtime"), RuntimeTrancheCrun: filepath.Join(c.Dir, "tranche-crun"),
		RuntimeRunc: "/usr/sbin/runc", RuntimeCrun: "/usr/bin/crun",
	}
}

// WriteConfig writes Tranche's configuration of this node into a file, to which TRANCHE_CONFIG leads then.
func (n *Node) WriteConfig(file string) error { return n.writeRuntimeConfig(file, RuntimeRunc) }

func (n *Node) writeRuntimeConfig(file, next string) (err error) {
	cli := n.Program("tranche")
	if n.Sim != nil {
		if cli, err = n.Sim.CLI(n.BuildDir, n.Dir); err != nil {
			return err
		}
	}
	text, err := toml.Marshal(map[string]any{
		"driver_root": n.DriverRoot(), "state_dir": n.StateDir(), "run_dir": n.RunDir(),
		"shadow_dir": filepath.Join(n.BuildDir, "lib"), "hook_path": filepath.Join(n.BuildDir, "bin/tranche-hook"),
		"cli_path": cli, "runtime": next,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// scratchEtc lays a layer in memory over /etc, once, so that what is configured there for the tests is gone with the
// sandbox, and the machine's own configuration of the engines with it.
var scratchEtc = sync.OnceValue(func() error {
	if os.Getenv("TRANCHE_SANDBOX") != "1" {
		return errors.New("/etc is only configured for tests in a sandbox (build/e2e/sandbox), where it is as before afterwards")
	}
	upper, work := "/run/etc/upper", "/run/etc/work"
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("overlay", "/etc", "overlay", 0, "lowerdir=/etc,upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount a scratch layer over /etc: %w", err)
	}
	return nil
})

// HideUnifiedCgroup hides cgroup version 2, in the sandbox, where it is mounted beside version 1, as test machines may have
// it and nodes seldom do: crun refuses to run then.
func HideUnifiedCgroup() error {
	err := unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount cgroup version 2: %w", err)
	}
	return nil
}
