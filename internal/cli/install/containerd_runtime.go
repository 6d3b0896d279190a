package install

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// inherited are the settings of a runtime that ours takes over from the default one: what they say holds for a node
// rather than for a runtime.
var inherited = []string{
	"base_runtime_spec", "cni_conf_dir", "cni_max_conf_num", "container_annotations", "pod_annotations",
	"privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed", "snapshotter",
}

// withRuntime is the file's text with our runtime in it. All files are given, since the runtime that ours takes
// settings from may be in any.
func (f containerdFile) withRuntime(files []containerdFile, o Options) (string, error) {
	before := f.clean
	runtime := f.runtime(files, o.RuntimePath)
	path := slices.Concat(f.section(), []string{"runtimes", RuntimeName})
	switch other, old := otherRuntime(files); {
	case old != nil && !o.SetDefault && lookup(old, "options", "BinaryName") == o.RuntimePath:
		return string(f.text), nil // somebody has written the same by hand
	case old != nil:
		return "", fmt.Errorf("%s has a runtime called %s that tranche install did not write: take it out first, nothing "+
			"was changed", other, RuntimeName)
	}
	set := nest(runtime, path...)
	after, lines := before, []string{}
	if before == "" {
		lines = append(lines, fmt.Sprintf("version = %d", f.config.Version), "")
		set["version"] = int64(f.config.Version)
	}
	if o.SetDefault {
		var missing []string
		after, missing = setKey(before, f.section(), defaultRuntimeKey, RuntimeName)
		lines = append(lines, missing...)
		merge(set, nest(any(RuntimeName), slices.Concat(f.section(), []string{defaultRuntimeKey})...))
	}
	after = appendMarked(after, append(lines, tableLines(path, runtime)...))
	return after, checkEdit(f.path, before, after, set)
}

// isZero tells of a value that says the same as none.
func isZero(value any) bool { return value == nil || reflect.ValueOf(value).IsZero() }

// otherRuntime is the table of a runtime with our name that stands outside our marks, and its file.
func otherRuntime(files []containerdFile) (string, tomlTree) {
	for _, f := range files {
		if found, ok := lookup(f.config.Plugins, f.plugin(), "containerd", "runtimes", RuntimeName).(tomlTree); ok {
			return f.path, found
		}
	}
	return "", nil
}

// runtime is the table of our runtime: what the default runtime has, with our binary.
func (f containerdFile) runtime(files []containerdFile, binary string) tomlTree {
	options := tomlTree{}
	runtime := tomlTree{}
	base := defaultRuntime(files)
	for _, key := range inherited {
		if value := base[key]; !isZero(value) {
			runtime[key] = value
		}
	}
	runtime["runtime_type"] = "io.containerd.runc.v2"
	if kind, _ := base["runtime_type"].(string); kind == "io.containerd.runc.v2" {
		old, _ := base["options"].(tomlTree)
		maps.Copy(options, old)
		maps.DeleteFunc(options, func(_ string, value any) bool { return isZero(value) })
	}
	options["BinaryName"] = binary
	runtime["options"] = options
	for _, key := range []string{"container_annotations", "pod_annotations"} {
		old, _ := runtime[key].([]any)
		runtime[key] = slices.Concat(old, annotations)
	}
	return runtime
}

// defaultRuntime is the table of the runtime that containers get by default; empty if the files have none.
func defaultRuntime(files []containerdFile) tomlTree {
	name, table := "runc", tomlTree{}
	for _, f := range files {
		if set, ok := lookup(f.config.Plugins, f.plugin(), "containerd", defaultRuntimeKey).(string); ok {
			name = set
		}
	}
	for _, f := range files {
		if found, ok := lookup(f.config.Plugins, f.plugin(), "containerd", "runtimes", name).(tomlTree); ok {
			table = found
		}
	}
	return table
}

// tableLines writes a table and the tables below it.
func tableLines(path []string, table tomlTree) []string {
	lines := []string{tableHeader(path)}
	var below []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if t, ok := table[key].(tomlTree); ok {
			below = append(below, tableLines(slices.Concat(path, []string{key}), t)...)
		} else {
			lines = append(lines, key+" = "+quote(table[key]))
		}
	}
	return append(lines, below...)
}
