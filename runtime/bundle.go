package runtime

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/bundle"
)

// specFile is a container's OCI spec, as a file in its bundle.
type specFile struct {
	jsonFile
	// spec is what a glance tells, until the spec is changed.
	spec *specs.Spec
}

// readSpecFile reads as much of the spec at path as tells whether there is something to do.
func readSpecFile(path string) (*specFile, error) {
	file := &specFile{jsonFile: jsonFile{bundle.Spec(path)}}
	if err := file.Read(); err != nil {
		return nil, err
	}
	var err error
	file.spec, err = file.Glance()
	return file, err
}

// environment is the container's environment; of a variable that is set twice, the last counts.
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

// modify applies a change to the spec. What the file says beyond what our version of the spec's types knows is kept.
func (f *specFile) modify(modifier Modifier) error {
	whole := &specs.Spec{}
	if err := f.Parse(whole); err != nil {
		return err
	}
	f.spec = whole
	return edit(&f.jsonFile, f.spec, modifier.Modify)
}
