package runtime

import "github.com/opencontainers/runtime-spec/specs-go"

// othersCheck has tranche-hook refuse a container that has other GPUs than its own when all its mounts are made. It is for
// containers without a limit: for others shadowedCopies does so, too.
type othersCheck struct {
	binding bindingHooks
}

// Modify appends the hook, after those of others.
func (o othersCheck) Modify(spec *specs.Spec) error {
	o.binding.appendCreateContainer(spec, "--unlimited")
	return nil
}
