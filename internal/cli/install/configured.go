package install

import (
	"encoding/json"
	"path/filepath"
)

// Configured says which file has, or would have, an engine's configuration, and which program it names as our runtime;
// "" if it names none. The paths are below a root. A link is followed, as the engine does: only a change of it is refused.
func Configured(engine, root string) (file, runtimePath string, err error) {
	switch engine {
	case "containerd":
		return containerdConfigured(resolve(filepath.Join(root, defaultContainerdConfig)))
	case "docker":
		return dockerConfigured(resolve(filepath.Join(root, defaultDockerConfig)))
	}
	return podmanConfigured(resolve(filepath.Join(root, podmanConfig)), resolve(filepath.Join(root, podmanDropIns, podmanDropIn)))
}

// resolve returns the path to which links lead, or the path itself if there is no such file.
func resolve(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return path
}

func containerdConfigured(path string) (file, runtimePath string, err error) {
	files, err := readContainerd(path)
	if err != nil {
		return path, "", err
	}
	file = path
	for _, f := range files {
		tree := tomlTree{}
		if err := parseTOML(f.file, &tree); err != nil {
			return f.path, "", err
		}
		section := append(f.section(), "runtimes", RuntimeName, "options", "BinaryName")
		if binary, ok := lookup(tree, section...).(string); ok {
			file, runtimePath = f.path, binary
		}
	}
	return file, runtimePath, nil
}

func dockerConfigured(path string) (file, runtimePath string, err error) {
	_, root, err := readDocker(path)
	if err != nil {
		return path, "", err
	}
	var settings struct {
		Runtimes map[string]struct{ Path string }
	}
	err = json.Unmarshal(root.text(), &settings)
	return path, settings.Runtimes[RuntimeName].Path, err
}

func podmanConfigured(paths ...string) (file, runtimePath string, err error) {
	for _, path := range paths {
		f, err := readPodman(path)
		if err != nil {
			return path, "", err
		}
		tree := tomlTree{}
		if err := parseTOML(f, &tree); err != nil {
			return path, "", err
		}
		if programs, ok := lookup(tree, "engine", "runtimes", RuntimeName).([]any); ok && len(programs) > 0 {
			runtimePath, _ = programs[0].(string)
		}
		file = path
	}
	return file, runtimePath, nil
}
