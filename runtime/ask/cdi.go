package ask

import (
	"maps"
	"slices"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/claim/memsize"
)

// The kind of the CDI devices by which containers ask, such as tranche.dev/slice=8GiB, and the file that CDI wants their
// specification in.
const (
	CDIVendor   = "tranche.dev"
	CDIClass    = "slice"
	CDISpecFile = CDIVendor + "-" + CDIClass + ".json"
)

// cdiPrefix begins the variable that such a device puts into a container's environment. The amount is part of the name:
// CDI overwrites a variable that is there already, and a container that asks for two devices, or in another way besides,
// has to be told so.
const cdiPrefix = "TRANCHE_CDI_SLICE_"

// cdiWishes are the amounts of the CDI devices that a container was given.
func cdiWishes(env map[string]string) []wish {
	var all []wish
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.HasPrefix(name, cdiPrefix) && env[name] != "" {
			all = append(all, wish{"CDI device " + CDIVendor + "/" + CDIClass, env[name]})
		}
	}
	return all
}

// CDISpec describes a CDI device for each number of slices up to most.
func CDISpec(sliceBytes uint64, most int) (*cdispecs.Spec, error) {
	spec := &cdispecs.Spec{Kind: CDIVendor + "/" + CDIClass}
	for count := 1; count <= most; count++ {
		amount := memsize.Format(uint64(count) * sliceBytes)
		spec.Devices = append(spec.Devices, cdispecs.Device{
			Name:           amount,
			ContainerEdits: cdispecs.ContainerEdits{Env: []string{cdiPrefix + amount + "=" + amount}},
		})
	}
	version, err := cdispecs.MinimumRequiredVersion(spec)
	spec.Version = version
	return spec, err
}
