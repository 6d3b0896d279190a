package generate

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo"
)

// answeringDevices queries nvcdi for each GPU by itself: for all GPUs at once it fails if one of them does not answer, and no
// container could use the others. The devices of a GPU in MIG mode are its instances.
func answeringDevices(library nvml.Interface, generator nvcdi.Interface) (
	devices []cdispecs.Device, unanswered []gpuinfo.Unanswered, err error,
) {
	if ret := library.Init(); ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("begin a session with NVML: %w", ret)
	}
	defer func() { _ = library.Shutdown() }()
	count, ret := library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("count the GPUs: %w", ret)
	}
	for i := range count {
		found, err := devicesOf(library, generator, i)
		if err != nil {
			unanswered = append(unanswered, gpuinfo.Unanswered{Index: i, Error: err.Error()})
			continue
		}
		devices = append(devices, found...)
	}
	return devices, unanswered, nil
}

func devicesOf(library nvml.Interface, generator nvcdi.Interface, index int) ([]cdispecs.Device, error) {
	gpu, ret := library.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	uuids, err := uuidsOf(gpu)
	if err != nil || len(uuids) == 0 {
		return nil, err
	}
	return generator.GetDeviceSpecsByID(uuids...)
}

// uuidsOf returns the names of a GPU's devices: its own, or those of its MIG instances.
func uuidsOf(gpu nvml.Device) ([]string, error) {
	mode, _, ret := gpu.GetMigMode()
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return nil, ret
	}
	if ret == nvml.ERROR_NOT_SUPPORTED || mode != nvml.DEVICE_MIG_ENABLE {
		uuid, ret := gpu.GetUUID()
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		return []string{uuid}, nil
	}
	most, ret := gpu.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var uuids []string
	for i := range most {
		instance, ret := gpu.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue // this place is free
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		uuid, ret := instance.GetUUID()
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		uuids = append(uuids, uuid)
	}
	return uuids, nil
}
