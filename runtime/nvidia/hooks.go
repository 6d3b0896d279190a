package nvidia

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// hookPrograms are the file names of NVIDIA's programs that are used as hooks.
var hookPrograms = []string{
	"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-cdi-hook", "nvidia-ctk",
}

// isHook reports whether a hook is one of NVIDIA's.
func isHook(hook specs.Hook) bool { return hookProgram(hook) != "" }

// hookProgram returns the name of NVIDIA's program in a hook, or "" for a hook without one. It also looks at the arguments,
// since containerd's --gpus adds a hook that runs containerd with NVIDIA's program as an argument, and follows links, since
// NVIDIA's program may be called by another name.
func hookProgram(hook specs.Hook) string {
	files := append([]string{hook.Path}, hook.Args...)
	if target, err := filepath.EvalSymlinks(hook.Path); err == nil {
		files = append(files, target)
	}
	for _, file := range files {
		if name := path.Base(file); slices.Contains(hookPrograms, strings.TrimSuffix(name, ".real")) {
			return name
		}
	}
	return ""
}
