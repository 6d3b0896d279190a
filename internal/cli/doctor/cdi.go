package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const makeCDI = "write it anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; or remove it, and Tranche " +
	"generates its own"

var cdiChecks = []check{
	{"CDI", "specifications", cdiSpecs},
	{"CDI", "GPUs", cdiGPUs},
	{"CDI", "files", cdiFiles},
}

func (n *Node) cdi() (*cdi.Cache, error) {
	return cdi.NewCache(cdi.WithSpecDirs(n.Config.CDISpecDirs...), cdi.WithAutoRefresh(false))
}

func (n *Node) cdiDirs() string { return strings.Join(n.Config.CDISpecDirs, ", ") }

// cdiSpecs reads them all: one that is broken may be the one that names a GPU.
func cdiSpecs(_ context.Context, n *Node) finding {
	cache, err := n.cdi()
	if err != nil {
		return fault(n.cdiDirs(), err.Error(), "let root read the directories")
	}
	for path, errs := range cache.GetErrors() {
		return fault(path, fmt.Sprint(errs), makeCDI)
	}
	return ok(n.cdiDirs(), "%d devices", len(cache.ListDevices()))
}

// cdiGPUs looks for the GPUs by UUID, as Tranche does.
func cdiGPUs(_ context.Context, n *Node) finding {
	cache, err := n.cdi()
	if err != nil {
		return fault(n.cdiDirs(), err.Error(), "let root read the directories")
	}
	var named, missing []string
	for _, g := range n.gpus.GPUs {
		if cache.GetDevice("nvidia.com/gpu="+g.UUID) != nil {
			named = append(named, g.UUID)
		} else {
			missing = append(missing, g.UUID)
		}
	}
	switch {
	case len(n.gpus.GPUs) == 0:
		return ok(n.cdiDirs(), "NVML names no GPUs to look for")
	case len(missing) == 0:
		return ok(n.cdiDirs(), "all %d GPUs by their UUID", len(named))
	case len(named) == 0:
		return ok(n.cdiDirs(), "none names the GPUs by UUID, so Tranche generates its own specification")
	}
	return warning(n.cdiDirs(), "some GPUs are named by UUID, but not "+strings.Join(missing, ", "), makeCDI)
}

// cdiFiles finds specifications that were written for an older driver: they mount what is not there any more.
func cdiFiles(_ context.Context, n *Node) finding {
	cache, err := n.cdi()
	if err != nil {
		return fault(n.cdiDirs(), err.Error(), "let root read the directories")
	}
	checked := 0
	for _, spec := range cache.GetVendorSpecs("nvidia.com") {
		edits := []specs.ContainerEdits{spec.ContainerEdits}
		for _, d := range spec.Devices {
			edits = append(edits, d.ContainerEdits)
		}
		for _, e := range edits {
			for _, m := range e.Mounts {
				checked++
				if _, err := os.Stat(m.HostPath); err != nil {
					return fault(spec.GetPath(), "it mounts "+m.HostPath+", which is absent", "it is older than the driver: "+makeCDI)
				}
			}
		}
	}
	return ok(n.cdiDirs(), "all %d files that they mount are there", checked)
}
