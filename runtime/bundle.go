package runtime

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// specFile is a container's OCI spec, as a file in its bundle.
type specFile struct {
	jsonFile
	spec *specs.Spec
}

// readSpecFile reads the spec at path.
func readSpecFile(path string) (*specFile, error) {
	file := &specFile{jsonFile: jsonFile{what: "the container's spec", kind: "OCI spec", path: path}, spec: &specs.Spec{}}
	if err := file.read(file.spec); err != nil {
		return nil, err
	}
	return file, nil
}

// ReadSpec reads the spec at path, as the hooks do, to whom it is only to look at.
func ReadSpec(path string) (*specs.Spec, error) {
	file, err := readSpecFile(path)
	if err != nil {
		return nil, err
	}
	return file.spec, nil
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
func (f *specFile) modify(modifier Modifier) error { return edit(&f.jsonFile, f.spec, modifier.Modify) }
