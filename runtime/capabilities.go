package runtime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DriverCapabilitiesEnv names the variable by which an image or a job says what it needs of the driver.
const DriverCapabilitiesEnv = "NVIDIA_DRIVER_CAPABILITIES"

// capabilities is a set of what the driver can do for a container.
type capabilities uint8

const (
	compute capabilities = 1 << iota
	utility
	video
	graphics
	display
	ngx
	compat32
	everyCapability capabilities = 1<<iota - 1
)

// allNames stands for every capability.
const allNames = "all"

// usualCapabilities are those of a container that says nothing, as NVIDIA's runtime has it.
const usualCapabilities = compute | utility

var capabilityNames = []struct {
	name string
	set  capabilities
}{
	{"compute", compute},
	{"utility", utility},
	{"video", video},
	{"graphics", graphics},
	{"display", display},
	{"ngx", ngx},
	{"compat32", compat32},
}

// String lists the names, as the variable has them.
func (c capabilities) String() string {
	var names []string
	for _, known := range capabilityNames {
		if c&known.set != 0 {
			names = append(names, known.name)
		}
	}
	return strings.Join(names, ",")
}

// parseCapabilities reads a list such as "compute,utility", or "all". An empty one is the empty set.
func parseCapabilities(text string) (capabilities, error) {
	var set capabilities
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		known := capabilityCalled(name)
		if known == 0 && name != "" {
			return 0, fmt.Errorf("the GPU driver has no capability %.40q; there are %s, and all", name, everyCapability)
		}
		set |= known
	}
	return set, nil
}

func capabilityCalled(name string) capabilities {
	if name == allNames {
		return everyCapability
	}
	for _, known := range capabilityNames {
		if known.name == name {
			return known.set
		}
	}
	return 0
}

// askedCapabilities are those that a container asks for, of the allowed ones. As with NVIDIA's runtime, "all" are all
// that are allowed, and one that is named has to be.
func askedCapabilities(spec *specs.Spec, allowed capabilities) (capabilities, error) {
	asked, err := parseCapabilities(variable(spec, DriverCapabilitiesEnv))
	switch refused := asked &^ allowed; {
	case err != nil:
		return 0, fmt.Errorf("environment variable %s: %w", DriverCapabilitiesEnv, err)
	case asked == 0:
		return usualCapabilities & allowed, nil
	case asked == everyCapability:
		return allowed, nil
	case refused != 0:
		return 0, fmt.Errorf("environment variable %s: this node does not give containers the driver's capability %s, "+
			"only %s; ask for those, or have the operator allow more with driver_capabilities",
			DriverCapabilitiesEnv, refused, allowed)
	}
	return asked, nil
}

// variable is the value of a variable in a container's environment; of one that is set twice, the last counts.
func variable(spec *specs.Spec, name string) string {
	for _, entry := range slices.Backward(spec.Process.Env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// CheckDriverCapabilities checks a value of Config.DriverCapabilities.
func CheckDriverCapabilities(allowed string) error {
	_, err := Config{DriverCapabilities: allowed}.allowedCapabilities()
	return err
}

// allowedCapabilities are those that containers on this node may ask for.
func (c Config) allowedCapabilities() (capabilities, error) {
	if c.DriverCapabilities == "" {
		return everyCapability, nil
	}
	allowed, err := parseCapabilities(c.DriverCapabilities)
	if err == nil && allowed == 0 {
		err = fmt.Errorf("%q names none", c.DriverCapabilities)
	}
	if err != nil {
		return 0, fmt.Errorf("driver_capabilities: %w", err)
	}
	return allowed, nil
}
