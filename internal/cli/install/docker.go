package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tailscale/hujson"
)

// defaultDockerConfig is what dockerd reads unless it is told otherwise.
const defaultDockerConfig = "/etc/docker/daemon.json"

// The settings of Docker that are about runtimes.
const (
	dockerRuntimes = "runtimes"
	dockerDefault  = "default-runtime"
)

// Docker is dockerd. JSON has no comments, so what is ours there is known by the record.
type Docker struct{}

var dockerReload = []string{"systemctl", "reload", "docker"}

// Install plans the runtime's entry in the daemon's configuration.
func (Docker) Install(_ context.Context, o Options, was Entry) (*Plan, error) {
	f, root, err := readDocker(orDefault(o.ConfigFile, defaultDockerConfig))
	if err != nil {
		return nil, err
	}
	if err := refuseAbsent("docker", o, f); err != nil {
		return nil, err
	}
	if err := refuseDockerFlags(); err != nil {
		return nil, err
	}
	if was.File != f.path {
		was = Entry{}
	}
	entry := was
	entry.File, entry.Runtime, entry.Created = f.path, o.RuntimePath, was.Created || !f.exists
	runtimes, added, err := root.object(dockerRuntimes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; nothing was changed", f.path, err)
	}
	entry.CreatedRuntimes = was.CreatedRuntimes || added
	if old := runtimes.get(RuntimeName); old != nil && !sameRuntime(old, o.RuntimePath, was.Runtime) {
		return nil, foreignRuntime(f, old)
	}
	runtimes.set(RuntimeName, map[string]string{"path": o.RuntimePath})
	if o.SetDefault {
		if old := root.get(dockerDefault); !was.SetDefault && old != nil {
			entry.OldDefault = strings.TrimSpace(old.String())
		}
		entry.SetDefault = true
		root.set(dockerDefault, RuntimeName)
	}
	plan := &Plan{Entry: entry, Reload: dockerReload, ReloadNote: "containers go on running"}
	plan.change(f, root.text())
	return plan, checkJSON(f.path, root.text())
}

// Uninstall plans to take the entry out.
func (Docker) Uninstall(_ context.Context, o Options, was Entry) (*Plan, error) {
	f, root, err := readDocker(orDefault(orDefault(o.ConfigFile, was.File), defaultDockerConfig))
	if err != nil {
		return nil, err
	}
	plan := &Plan{Reload: dockerReload, ReloadNote: "containers go on running"}
	if !f.exists {
		return plan, nil
	}
	if old := root.get(dockerDefault); old != nil && strings.TrimSpace(old.String()) == quoteJSON(RuntimeName) {
		switch {
		case was.SetDefault && was.OldDefault != "":
			root.setRaw(dockerDefault, was.OldDefault)
		case was.SetDefault || o.Force:
			root.remove(dockerDefault)
		default:
			return nil, &DependsError{File: f.path, Setting: quoteJSON(dockerDefault) + ": " + quoteJSON(RuntimeName)}
		}
	}
	if root.get(dockerRuntimes) != nil {
		runtimes, _, err := root.object(dockerRuntimes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; nothing was changed", f.path, err)
		}
		old := runtimes.get(RuntimeName)
		if old != nil && !o.Force && was.File != f.path && !isOurRuntime(old) {
			return nil, foreignRuntime(f, old)
		}
		runtimes.remove(RuntimeName)
		if was.CreatedRuntimes && runtimes.empty() {
			root.remove(dockerRuntimes)
		}
	}
	if root.get(dockerRuntimes) == nil || was.SetDefault && root.get(dockerDefault) == nil {
		// A reload leaves a setting as it is that the file does not have any more.
		plan.Reload, plan.ReloadNote = []string{"systemctl", "restart", "docker"}, "containers stop, unless live-restore is on"
		if plan.Stops, err = stoppedByRestart(root); err != nil {
			return nil, err
		}
	}
	if was.Created && root.empty() {
		plan.remove(f)
		return plan, nil
	}
	plan.change(f, root.text())
	return plan, checkJSON(f.path, root.text())
}

// readDocker reads the daemon's configuration. One that is missing or empty is one without settings.
func readDocker(path string) (*file, *jsonObject, error) {
	f, err := readFile(path)
	if err != nil {
		return nil, nil, err
	}
	text := f.text
	if len(bytes.TrimSpace(text)) == 0 {
		return f, newJSONObject(), nil
	}
	if err := checkJSON(path, text); err != nil {
		return nil, nil, err
	}
	value, err := hujson.Parse(text)
	if err != nil {
		return nil, nil, fmt.Errorf("%s is no JSON: %w; correct it first, nothing was changed", path, err)
	}
	root, err := parseJSONObject(value)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w; nothing was changed", path, err)
	}
	return f, root, nil
}

// checkJSON reads it as strictly as Docker does.
func checkJSON(path string, text []byte) error {
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		where := ""
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			before := text[:min(int(syntax.Offset), len(text))]
			where = fmt.Sprintf(" in line %d", bytes.Count(before, []byte("\n"))+1)
		}
		return fmt.Errorf("%s is no JSON object%s: %w; correct it first, nothing was changed", path, where, err)
	}
	return nil
}

func foreignRuntime(f *file, entry *hujson.Value) error {
	return fmt.Errorf("%s has a runtime called %s that tranche install did not write: %s; take it out first, nothing was "+
		"changed", f.path, RuntimeName, strings.TrimSpace(entry.String()))
}

// isOurRuntime tells, where no record does, whether a runtime's program is ours.
func isOurRuntime(entry *hujson.Value) bool {
	var runtime struct{ Path string }
	return json.Unmarshal(entry.Pack(), &runtime) == nil && filepath.Base(runtime.Path) == filepath.Base(RuntimePath(""))
}

// sameRuntime reports whether the entry of a runtime is one that install writes, now or at an earlier time.
func sameRuntime(entry *hujson.Value, paths ...string) bool {
	var runtime map[string]any
	if json.Unmarshal(entry.Pack(), &runtime) != nil || len(runtime) != 1 {
		return false
	}
	for _, path := range paths {
		if path != "" && runtime["path"] == path {
			return true
		}
	}
	return false
}
