package edit

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/runtime/ocispec"
)

// DriverCapabilitiesEnv names the variable by which an image or a job requests capabilities of the driver.
const DriverCapabilitiesEnv = "NVIDIA_DRIVER_CAPABILITIES"

// capabilities is a set of the driver's capabilities.
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

// AllCapabilities is the name for all capabilities.
const AllCapabilities = "all"

// usualCapabilities are those of a container that requests none, as in NVIDIA's runtime.
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

// String returns the names, separated by commas.
func (c capabilities) String() string {
	var names []string
	for _, known := range capabilityNames {
		if c&known.set != 0 {
			names = append(names, known.name)
		}
	}
	return strings.Join(names, ",")
}

// parseCapabilities parses a list such as "compute,utility", or "all". An empty text is the empty set.
func parseCapabilities(text string) (capabilities, error) {
	var set capabilities
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		known := capabilityCalled(name)
		if known == 0 && name != "" {
			return 0, fmt.Errorf("unknown driver capability %.40q; there are %s, and all", name, everyCapability)
		}
		set |= known
	}
	return set, nil
}

func capabilityCalled(name string) capabilities {
	if name == AllCapabilities {
		return everyCapability
	}
	for _, known := range capabilityNames {
		if known.name == name {
			return known.set
		}
	}
	return 0
}

// askedCapabilities returns the capabilities that a container requests. As in NVIDIA's runtime, "all" are all that are
// allowed, and one that is named has to be allowed.
func askedCapabilities(spec *specs.Spec, allowed capabilities) (capabilities, error) {
	asked, err := parseCapabilities(ocispec.Variable(spec, DriverCapabilitiesEnv))
	switch refused := asked &^ allowed; {
	case err != nil:
		return 0, fmt.Errorf("environment variable %s: %w", DriverCapabilitiesEnv, err)
	case asked == 0:
		return usualCapabilities & allowed, nil
	case asked == everyCapability:
		return allowed, nil
	case refused != 0:
		return 0, fmt.Errorf("environment variable %s: this node does not allow the driver capability %s, "+
			"only %s; request those, or have the operator allow more with driver_capabilities",
			DriverCapabilitiesEnv, refused, allowed)
	}
	return asked, nil
}

// CheckDriverCapabilities checks a value of Node.DriverCapabilities.
func CheckDriverCapabilities(allowed string) error {
	_, err := Node{DriverCapabilities: allowed}.allowedCapabilities()
	return err
}

// allowedCapabilities returns the capabilities that containers on this node may request.
func (n Node) allowedCapabilities() (capabilities, error) {
	if n.DriverCapabilities == "" {
		return everyCapability, nil
	}
	allowed, err := parseCapabilities(n.DriverCapabilities)
	if err == nil && allowed == 0 {
		err = fmt.Errorf("%q names none", n.DriverCapabilities)
	}
	if err != nil {
		return 0, fmt.Errorf("driver_capabilities: %w", err)
	}
	return allowed, nil
}
