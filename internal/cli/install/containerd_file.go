package install

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// The CRI plugin, as the versions of the configuration call it.
const (
	criV1 = "cri"
	criV2 = "io.containerd.grpc.v1.cri"
	criV3 = "io.containerd.cri.v1.runtime"

	newestContainerdConfig = 4
)

// defaultRuntimeKey names the runtime of containers that ask for none.
const defaultRuntimeKey = "default_runtime_name"

// containerdFile is containerd's configuration file or one that it imports.
type containerdFile struct {
	*file
	// clean is its text without what we wrote, and config what that says; but for the version, which may be ours.
	clean  string
	config struct {
		Version         int
		Imports         []string
		DisabledPlugins []string `toml:"disabled_plugins"`
		Plugins         tomlTree
	}
}

// readContainerd reads the main file and all that it imports, in the order in which containerd does.
func readContainerd(path string) ([]containerdFile, error) {
	var files []containerdFile
	pending := []string{path}
	for len(pending) > 0 {
		path, pending = pending[0], pending[1:]
		if slices.ContainsFunc(files, func(f containerdFile) bool { return f.path == path }) {
			continue
		}
		f, err := readContainerdFile(path)
		if err != nil {
			return nil, err
		}
		if !f.exists && len(files) > 0 {
			return nil, fmt.Errorf("%s imports %s, which is not there", files[0].path, path)
		}
		files = append(files, f)
		imported, err := f.imported()
		if err != nil {
			return nil, err
		}
		pending = append(pending, imported...)
	}
	return files, nil
}

func readContainerdFile(path string) (containerdFile, error) {
	base, err := readFile(path)
	if err != nil {
		return containerdFile{}, err
	}
	f := containerdFile{file: base}
	if len(bytes.TrimSpace(f.text)) == 0 {
		f.config.Version = 2 // which containerd 1.3 and everything since then understands
		return f, nil
	}
	if err := f.parse(); err != nil {
		return f, err
	}
	if f.config.Version < 0 || f.config.Version > newestContainerdConfig {
		return f, fmt.Errorf("%s is of version %d, and only versions up to %d are known: `containerd config migrate` may "+
			"help; nothing was changed", path, f.config.Version, newestContainerdConfig)
	}
	return f, nil
}

func (f *containerdFile) parse() error {
	if err := parseTOML(f.file, &f.config); err != nil {
		return err
	}
	version := f.config.Version
	f.config.Plugins = nil
	f.clean = withoutMarked(string(f.text), defaultRuntimeSetting())
	err := parseTOML(&file{path: f.path, text: []byte(f.clean)}, &f.config)
	f.config.Version = version
	return err
}

// defaultRuntimeSetting is the line that makes our runtime the default.
func defaultRuntimeSetting() string { return defaultRuntimeKey + " = " + quote(RuntimeName) }

// imported lists the files that a file imports.
func (f containerdFile) imported() ([]string, error) {
	var all []string
	for _, pattern := range f.importPatterns() {
		if !strings.Contains(pattern, "*") {
			all = append(all, pattern)
			continue
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s imports %q: %w", f.path, pattern, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (f containerdFile) importPatterns() []string {
	var patterns []string
	for _, pattern := range f.config.Imports {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(f.path), pattern)
		}
		patterns = append(patterns, filepath.Clean(pattern))
	}
	return patterns
}

// dropIn gives our own file in a directory of which the main file imports all that ends in .toml.
func (f containerdFile) dropIn() (containerdFile, bool) {
	for _, pattern := range f.importPatterns() {
		if filepath.Base(pattern) != "*.toml" || strings.Contains(filepath.Dir(pattern), "*") {
			continue
		}
		base, err := readFile(filepath.Join(filepath.Dir(pattern), containerdDropIn))
		if err != nil || base.exists {
			return containerdFile{}, false
		}
		d := containerdFile{file: base}
		d.config.Version = f.config.Version
		return d, true
	}
	return containerdFile{}, false
}

// plugin is the CRI plugin's name in a file of this version.
func (f containerdFile) plugin() string {
	switch {
	case f.config.Version < 2:
		return criV1
	case f.config.Version == 2:
		return criV2
	}
	return criV3
}

// section is the path of the tables that the CRI plugin has for runtimes.
func (f containerdFile) section() []string { return []string{"plugins", f.plugin(), "containerd"} }

// withoutRuntime takes out what we put in. What else makes the runtime the default is an error unless forced.
func (f containerdFile) withoutRuntime(force bool) (string, error) {
	key := slices.Concat(f.section(), []string{defaultRuntimeKey})
	if lookup(tomlTree{"plugins": f.config.Plugins}, key...) != RuntimeName {
		return f.clean, nil
	}
	line, found := findKey(f.clean, key)
	if !force || !found {
		return "", &DependsError{File: f.path, Setting: defaultRuntimeSetting()}
	}
	lines := strings.Split(f.clean, "\n")
	return strings.Join(slices.Delete(lines, line, line+1), "\n"), nil
}
