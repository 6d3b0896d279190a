package edit

import (
	"context"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// generatedEdits returns the CDI edits for the claims' GPUs in the CDI spec that is generated from the driver root.
func generatedEdits(ctx context.Context, node Node, claims []Claim) (*cdi.ContainerEdits, error) {
	uuids := gpuUUIDs(claims)
	spec, err := node.Place().Spec(ctx, node.RefreshNodeInfo, uuids, instancesCheck(claims, procDriver))
	if err != nil {
		return nil, err
	}
	merged := &cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}
	for i := range spec.Devices {
		if slices.Contains(uuids, spec.Devices[i].Name) {
			merged.Append(&cdi.ContainerEdits{ContainerEdits: &spec.Devices[i].ContainerEdits})
		}
	}
	return merged, nil
}

func gpuUUIDs(claims []Claim) []string {
	var uuids []string
	for _, c := range claims {
		uuids = append(uuids, c.GPU.UUID)
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}
