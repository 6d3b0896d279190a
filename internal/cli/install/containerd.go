package install

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// defaultContainerdConfig is what containerd reads unless it is told otherwise.
const defaultContainerdConfig = "/etc/containerd/config.toml"

// containerdDropIn is our file in a directory that the main file imports. It comes after those of others, as theirs
// go by numbers and by names that sort before ours.
const containerdDropIn = "99-tranche.toml"

// annotations are what the runtime reads of a container's annotations. containerd hands on only those that it is told of.
var annotations = []any{"dev.tranche/*"}

// Containerd is containerd's CRI plugin, which Kubernetes and crictl talk to. ctr and nerdctl name a runtime by its path
// and need no configuration.
type Containerd struct {
	// Version is containerd's, as in 1.6 or 2.4; "" asks the one on the PATH. None at all is taken for an old one, since
	// what we write for those is understood by all.
	Version string
}

// Install plans the runtime's table in the configuration.
func (c Containerd) Install(ctx context.Context, o Options, was Entry) (*Plan, error) {
	files, err := readContainerd(orDefault(o.ConfigFile, defaultContainerdConfig))
	if err != nil {
		return nil, err
	}
	if err := refuseAbsent("containerd", o, files[0].file); err != nil {
		return nil, err
	}
	o.SetDefault = o.SetDefault || was.SetDefault
	plan := &Plan{
		Entry:  Entry{File: files[0].path, Runtime: o.RuntimePath, SetDefault: o.SetDefault},
		Reload: []string{"systemctl", "restart", "containerd"}, ReloadNote: "containers go on running",
	}
	for _, f := range files {
		if slices.ContainsFunc(f.config.DisabledPlugins, isCRI) {
			plan.note("%s disables containerd's CRI plugin, so nobody will ask for this runtime by its name; ctr and "+
				"nerdctl can name %s by its path without any configuration", f.path, o.RuntimePath)
		}
	}
	target := c.target(ctx, files)
	after, err := target.withRuntime(files, o)
	if err != nil {
		return nil, err
	}
	plan.Entry.Created = was.Created || !target.exists
	plan.change(target.file, []byte(after))
	return plan, nil
}

// Uninstall plans to take out what stands between our marks, in whichever file that is.
func (c Containerd) Uninstall(_ context.Context, o Options, was Entry) (*Plan, error) {
	files, err := readContainerd(orDefault(orDefault(o.ConfigFile, was.File), defaultContainerdConfig))
	if err != nil {
		return nil, err
	}
	plan := &Plan{Reload: []string{"systemctl", "restart", "containerd"}, ReloadNote: "containers go on running"}
	for _, f := range files {
		after, err := f.withoutRuntime(o.Force)
		if err != nil {
			return nil, err
		}
		switch {
		case !f.exists || after == string(f.text):
		case after == "" && (was.Created || filepath.Base(f.path) == containerdDropIn):
			plan.remove(f.file)
		default:
			plan.change(f.file, []byte(after))
		}
	}
	return plan, nil
}

// target is the file for the runtime: where it is already, else a file of its own where containerd merges what it
// imports, else the file that has the last word on the CRI plugin. Before 2.1 a file that is imported replaces the
// plugin's whole section.
func (c Containerd) target(ctx context.Context, files []containerdFile) containerdFile {
	for _, f := range files {
		if hasMarks(string(f.text)) {
			return f
		}
	}
	merges := atLeast(orDefault(c.Version, containerdVersion(ctx)), 2, 1)
	if merges && files[0].exists {
		if f, ok := files[0].dropIn(); ok {
			return f
		}
	}
	if !files[0].exists && atLeast(orDefault(c.Version, containerdVersion(ctx)), 2, 0) {
		files[0].config.Version = 3
	}
	if !merges {
		for _, f := range slices.Backward(files) {
			if lookup(f.config.Plugins, f.plugin()) != nil {
				return f
			}
		}
	}
	return files[0]
}

var versionPattern = regexp.MustCompile(`\bv?(\d+)\.(\d+)\.\d`)

// versionPatience bounds how long a program may take to say its version.
const versionPatience = 10 * time.Second

// containerdVersion asks the containerd on the PATH.
func containerdVersion(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "containerd", "--version")
	cmd.WaitDelay = time.Second // what it has started may hold its output open
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	m := versionPattern.FindStringSubmatch(string(out))
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%s.%s", m[1], m[2])
}

// atLeast compares a version; none is older than all.
func atLeast(version string, major, minor int) bool {
	m := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(version)
	if m == nil {
		return false
	}
	x, _ := strconv.Atoi(m[1])
	y, _ := strconv.Atoi(m[2])
	return x > major || x == major && y >= minor
}

func isCRI(plugin string) bool {
	return slices.Contains([]string{"cri", criV2, criV3, "io.containerd.cri.v1"}, plugin)
}

func orDefault(value, otherwise string) string {
	if value != "" {
		return value
	}
	return otherwise
}
