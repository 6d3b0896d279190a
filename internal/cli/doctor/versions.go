package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tranche-gpu/tranche/internal/version"
	"github.com/tranche-gpu/tranche/runtime/shadow"
)

var versionChecks = []check{{"versions", "programs and libraries", installedVersions}}

// installedFile is a program or library of Tranche, how its version is read, and the command that installs it.
type installedFile struct {
	path    string
	version func(context.Context, string) (string, error)
	install string
}

// installedVersions compares the versions of what is installed with this program's. They differ where an upgrade was not
// finished.
func installedVersions(ctx context.Context, n *Node) finding {
	var files, others []string
	remedy := installFiles
	for _, file := range n.installedFiles() {
		if _, err := os.Stat(file.path); err != nil {
			continue // other checks report it
		}
		files = append(files, file.path)
		if file.install == installPlugins {
			remedy = installPlugins // it installs the other files, too
		}
		switch found, err := file.version(ctx, file.path); {
		case err != nil:
			others = append(others, fmt.Sprintf("the version of %s is unknown (%v)", file.path, err))
		case found != n.Version:
			others = append(others, file.path+" has "+found)
		}
	}
	if len(files) == 0 {
		return ok(n.RuntimePath, "nothing is installed")
	}
	looked := strings.Join(files, ", ")
	if len(others) > 0 {
		return warning(looked, "tranche has version "+n.Version+", but "+strings.Join(others, ", "), "finish the upgrade: "+remedy)
	}
	return ok(looked, "all have version %s", n.Version)
}

func (n *Node) installedFiles() []installedFile {
	files := []installedFile{
		{n.RuntimePath, printedBy(version.RuntimeFlag), installFiles},
		{n.Config.HookPath, printedBy(version.Flag), installFiles},
		{n.Config.CLIPath, printedBy(version.Flag), installFiles},
	}
	for _, file := range shadow.Files() {
		files = append(files, installedFile{filepath.Join(n.Config.ShadowDir, file), ofLibrary, installFiles})
	}
	config, err := n.nomadConfig()
	if err != nil || config == nil || config.PluginDir == "" {
		return files
	}
	for _, name := range nomadPluginNames {
		files = append(files, installedFile{filepath.Join(n.path(config.PluginDir), name), printedBy(version.Flag), installPlugins})
	}
	return files
}

func ofLibrary(_ context.Context, file string) (string, error) { return shadow.Version(file) }

// printedBy has a program print its version, which is the last word of a line.
func printedBy(flag string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, program string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, versionPatience)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, flag)
		cmd.WaitDelay = pipePatience
		out, err := cmd.Output()
		words := strings.Fields(string(out))
		if err == nil && len(words) == 0 {
			err = errors.New("it prints nothing")
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", flag, err)
		}
		return words[len(words)-1], nil
	}
}
