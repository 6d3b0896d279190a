package nvml

import (
	"fmt"
	"math"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// profileNames is the function by which newer drivers return the name of a profile.
const profileNames = "nvmlDeviceGetGpuInstanceProfileInfoV"

// profileName returns the driver's name of a profile, such as 1g.10gb+me.
func (l *Library) profileName(device gonvml.Device, id int, info gonvml.GpuInstanceProfileInfo) (string, gonvml.Return) {
	if l.has(profileNames) {
		named, ret := device.GetGpuInstanceProfileInfoV(id).V2()
		if ret == gonvml.SUCCESS {
			return text(named.Name[:]), gonvml.SUCCESS
		}
		if !absent(ret) && ret != gonvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return "", ret
		}
	}
	memory, ret := device.GetMemoryInfo()
	return madeName(id, info, memory.Total), ret
}

// madeName computes the name for drivers that do not return it: compute slices, and the memory as a fraction of the GPU's,
// in eighths.
func madeName(id int, info gonvml.GpuInstanceProfileInfo, totalBytes uint64) string {
	const eighths = 8
	part := math.Ceil(float64(info.MemorySizeMB<<20)/float64(totalBytes)*eighths) / eighths
	gigabytes := math.Round(part * math.Ceil(float64(totalBytes)/(1<<30)))
	return fmt.Sprintf("%dg.%dgb%s", info.SliceCount, int(gigabytes), profileSuffix(id))
}

// profileSuffix returns what follows the size in the name of a profile.
func profileSuffix(id int) string {
	switch id {
	case gonvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, gonvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return "+me" // with the media engines
	case gonvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME, gonvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
		return "+me.all"
	case gonvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME, gonvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
		return "-me"
	case gonvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX, gonvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX,
		gonvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX, gonvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:
		return "+gfx"
	}
	return ""
}

// text returns the C string in an array.
func text(array []int8) string {
	var bytes []byte
	for _, c := range array {
		if c == 0 {
			break
		}
		bytes = append(bytes, byte(c))
	}
	return string(bytes)
}
