package node

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// pluginDirName is the agent's plugin directory, in its node's directory.
const pluginDirName = "plugins"

// Install installs the programs and libraries of a build folder as docs/upgrade.md says, over those that are installed.
// What runs is not restarted. It works in the sandbox only, since `tranche install` writes to /etc.
func (n *Node) Install(ctx context.Context, buildDir string) error {
	if err := scratchEtc(); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(buildDir, "bin/tranche"), "install", "nomad", "--from", buildDir,
		"--prefix", n.Prefix(), "--config", filepath.Join(n.Dir, pluginFile), "--state-dir", n.StateDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install %s: %w: %s", buildDir, err, out)
	}
	return nil
}

// Prefix is the directory whose bin has the node's programs.
func (n *Node) Prefix() string {
	if n.InstallFrom == "" {
		return n.BuildDir
	}
	return filepath.Join(n.Dir, "usr")
}

// Program is the path of one of the node's programs.
func (n *Node) Program(name string) string { return filepath.Join(n.Prefix(), "bin", name) }

// PluginPath is the path of one of Tranche's plugins.
func (n *Node) PluginPath(name string) string {
	if n.InstallFrom == "" {
		return n.Program(name)
	}
	return filepath.Join(n.Dir, pluginDirName, name)
}

// ShadowDir is the directory of the node's shadow libraries.
func (n *Node) ShadowDir() string {
	if n.InstallFrom == "" {
		return filepath.Join(n.BuildDir, "lib")
	}
	return filepath.Join(n.Prefix(), "lib/tranche")
}
