// Package ocispec has queries of an OCI spec that several edits share.
package ocispec

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Variable returns the value of a variable in the container's environment. If it is set twice, the last one counts.
func Variable(spec *specs.Spec, name string) string {
	if spec.Process == nil {
		return ""
	}
	for _, entry := range slices.Backward(spec.Process.Env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// ContainerPath returns a path in the container as the OCI runtime resolves it: absolute and clean.
func ContainerPath(name string) string { return path.Clean("/" + name) }

// IsBind reports whether a mount is a bind mount.
func IsBind(mount specs.Mount) bool {
	return mount.Type == "bind" || slices.Contains(mount.Options, "bind") || slices.Contains(mount.Options, "rbind")
}

// HookLists returns the lists of hooks, one for each kind.
func HookLists(spec *specs.Spec) []*[]specs.Hook {
	if spec.Hooks == nil {
		return nil
	}
	hooks := spec.Hooks
	return []*[]specs.Hook{
		&hooks.Prestart, //nolint:staticcheck // deprecated, and still what NVIDIA's runtime and Docker use
		&hooks.CreateRuntime, &hooks.CreateContainer, &hooks.StartContainer, &hooks.Poststart, &hooks.Poststop,
	}
}

// Hooks returns the hooks of all kinds.
func Hooks(spec *specs.Spec) []*specs.Hook {
	var all []*specs.Hook
	for _, list := range HookLists(spec) {
		for i := range *list {
			all = append(all, &(*list)[i])
		}
	}
	return all
}
