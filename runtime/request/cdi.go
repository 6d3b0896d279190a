package request

import (
	"maps"
	"slices"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/internal/size"
)

// The kind of the CDI devices by which containers request a fraction, such as tranche.dev/slice=8GiB, and the file name of
// their specification.
const (
	CDIVendor   = "tranche.dev"
	CDIClass    = "slice"
	CDISpecFile = CDIVendor + "-" + CDIClass + ".json"
)

// cdiPrefix begins the variable that such a device sets in a container's environment. The amount is part of the name: CDI
// overwrites variables that exist, and a container with two devices, or with another request, is to get an error.
const cdiPrefix = "TRANCHE_CDI_SLICE_"

// cdiOptions returns the amounts of the CDI devices in a container's environment.
func cdiOptions(env map[string]string) []option {
	var all []option
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, cdiPrefix) && env[name] != "" {
			all = append(all, option{"CDI device " + CDIVendor + "/" + CDIClass, env[name]})
		}
	}
	return all
}

// CDISpec returns a specification with a CDI device for each number of slices up to most.
func CDISpec(sliceBytes uint64, most int) (*cdispecs.Spec, error) {
	spec := &cdispecs.Spec{Kind: CDIVendor + "/" + CDIClass}
	for count := 1; count <= most; count++ {
		amount := size.Format(uint64(count) * sliceBytes)
		spec.Devices = append(spec.Devices, cdispecs.Device{
			Name:           amount,
			ContainerEdits: cdispecs.ContainerEdits{Env: []string{cdiPrefix + amount + "=" + amount}},
		})
	}
	version, err := cdispecs.MinimumRequiredVersion(spec)
	spec.Version = version
	return spec, err
}
