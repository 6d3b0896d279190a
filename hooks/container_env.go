package hooks

import (
	"path"
	"strings"

	"tranche.dev/tranche/runtime/bundle"
)

// searchPath lists the directories in LD_LIBRARY_PATH of the container's process, as the loader reads it: an empty one
// is the process's working directory, and others may be relative to that.
func searchPath(program bundle.Program) []string {
	value, ok := variable(program, "LD_LIBRARY_PATH")
	if !ok || value == "" {
		return nil
	}
	var dirs []string
	for _, dir := range strings.FieldsFunc(value+":", splitter(":;")) {
		dirs = append(dirs, expand(from(program.Cwd, dir))...)
	}
	if strings.HasPrefix(value, ":") || strings.HasSuffix(value, ":") || strings.Contains(value, "::") {
		dirs = append(dirs, from(program.Cwd, ""))
	}
	return dirs
}

// preloaded lists the files that LD_PRELOAD and LD_AUDIT name by a path.
func preloaded(program bundle.Program) []string {
	var files []string
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT"} {
		value, _ := variable(program, name)
		for _, file := range strings.FieldsFunc(value, splitter(": ")) {
			if strings.Contains(file, "/") {
				files = append(files, expand(from(program.Cwd, file))...)
			}
		}
	}
	return files
}

// variable is a variable of the container's environment; of one that is set twice, the last counts.
func variable(program bundle.Program, name string) (value string, ok bool) {
	for _, entry := range program.Env {
		if v, is := strings.CutPrefix(entry, name+"="); is {
			value, ok = v, true
		}
	}
	return value, ok
}

func splitter(separators string) func(rune) bool {
	return func(r rune) bool { return strings.ContainsRune(separators, r) }
}

// from makes a path absolute.
func from(dir, name string) string {
	if path.IsAbs(name) {
		return name
	}
	return "/" + strings.TrimPrefix(dir, "/") + "/" + name
}

// expand replaces the loader's variables for the name of the directory with libraries by each that it may stand for.
// $ORIGIN is the program's directory, which nobody knows before it runs.
func expand(name string) []string {
	name = strings.ReplaceAll(name, "${LIB}", "$LIB")
	if !strings.Contains(name, "$LIB") {
		return []string{name}
	}
	var names []string
	for _, lib := range []string{"lib", "lib64", "lib/" + triplet} {
		names = append(names, strings.ReplaceAll(name, "$LIB", lib))
	}
	return names
}
