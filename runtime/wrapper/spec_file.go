package wrapper

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/bundle"
	"github.com/tranche-gpu/tranche/runtime/edit"
)

// specFile is a container's OCI spec in its bundle.
type specFile struct {
	jsonFile
	// spec is the part that Glance reads, or the whole spec after modify.
	spec *specs.Spec
}

// readSpecFile reads the part of a spec that shows whether it has to be edited.
func readSpecFile(path string) (*specFile, error) {
	file := &specFile{jsonFile: jsonFile{bundle.Spec(path)}}
	if err := file.Read(); err != nil {
		return nil, err
	}
	var err error
	file.spec, err = file.Glance()
	return file, err
}

// environment returns the container's environment. If a variable is set twice, the last one counts.
func (f *specFile) environment() map[string]string {
	env := map[string]string{}
	if f.spec.Process == nil {
		return env
	}
	for _, entry := range f.spec.Process.Env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			env[name] = value
		}
	}
	return env
}

// modify applies a change to the spec, and keeps members that the spec's types do not have.
func (f *specFile) modify(modifier edit.Modifier) error {
	whole := &specs.Spec{}
	if err := f.Parse(whole); err != nil {
		return err
	}
	f.spec = whole
	return change(&f.jsonFile, f.spec, modifier.Modify)
}
