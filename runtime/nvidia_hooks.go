package runtime

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// nvidiaPrograms are what NVIDIA's own tools put into a spec as hooks, by the names of their files.
var nvidiaPrograms = []string{
	"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-cdi-hook", "nvidia-ctk",
}

// isNVIDIAHook tells whether a hook is one of NVIDIA's.
func isNVIDIAHook(hook specs.Hook) bool { return nvidiaProgram(hook) != "" }

// nvidiaProgram is the name of NVIDIA's program in a hook, "" for a hook that has nothing to do with GPUs. It looks at the
// arguments, too: containerd's --gpus has itself for a hook, and NVIDIA's program as an argument. A hook under a name of
// somebody's own is NVIDIA's if links lead from there to a program of NVIDIA's.
func nvidiaProgram(hook specs.Hook) string {
	files := append([]string{hook.Path}, hook.Args...)
	if target, err := filepath.EvalSymlinks(hook.Path); err == nil {
		files = append(files, target)
	}
	for _, file := range files {
		if name := path.Base(file); slices.Contains(nvidiaPrograms, strings.TrimSuffix(name, ".real")) {
			return name
		}
	}
	return ""
}
