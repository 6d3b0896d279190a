package runtime

import "github.com/opencontainers/runtime-spec/specs-go"

// hookKinds are the lists of hooks of a spec, one for each kind.
func hookKinds(spec *specs.Spec) []*[]specs.Hook {
	if spec.Hooks == nil {
		return nil
	}
	hooks := spec.Hooks
	return []*[]specs.Hook{
		&hooks.Prestart, //nolint:staticcheck // deprecated, and still what NVIDIA's runtime and Docker use
		&hooks.CreateRuntime, &hooks.CreateContainer, &hooks.StartContainer, &hooks.Poststart, &hooks.Poststop,
	}
}

// allHooks are the hooks of a spec, of all kinds.
func allHooks(spec *specs.Spec) []*specs.Hook {
	var all []*specs.Hook
	for _, kind := range hookKinds(spec) {
		for i := range *kind {
			all = append(all, &(*kind)[i])
		}
	}
	return all
}
