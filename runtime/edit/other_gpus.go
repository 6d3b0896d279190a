package edit

import "github.com/opencontainers/runtime-spec/specs-go"

// otherGPUsCheck has tranche-hook refuse a container that has GPUs other than its claims' once all its mounts are made. It is
// for containers without a limit: for others driverCopies includes the check.
type otherGPUsCheck struct {
	binding BindingHooks
}

// Modify appends the hook, after those of others.
func (o otherGPUsCheck) Modify(spec *specs.Spec) error {
	o.binding.appendCreateContainer(spec, "--unlimited")
	return nil
}
