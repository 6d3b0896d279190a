package nvml

import (
	"context"
	"fmt"
	"math"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NoMemoryLimit is the limit of a cgroup that has none: NVML_DEVICE_MEMORY_LIMIT_MAX.
const NoMemoryLimit = math.MaxUint64

// The functions of NVML, which drivers have from R615 on.
const (
	setMemoryLimits = "nvmlDeviceSetMemoryLimits_v1"
	getMemoryLimits = "nvmlDeviceGetMemoryLimits_v1"
)

// memoryLimit is a cgroup's limit on one GPU, and what its processes use of that GPU's memory, in bytes.
type memoryLimit struct{ limit, used uint64 }

// SetMemoryLimit implements Interface.
func (l *Library) SetMemoryLimit(ctx context.Context, uuid, cgroup string, bytes uint64) error {
	attempt := fmt.Sprintf("limit the cgroup %s to %d bytes of the GPU %s", cgroup, bytes, uuid)
	_, err := memoryLimits(ctx, l, uuid, setMemoryLimits, attempt, func(device gonvml.Device) (memoryLimit, gonvml.Return) {
		// No soft limit: nobody is evicted for a claim, since all claims of a GPU fit into it.
		return memoryLimit{}, device.SetMemoryLimits_v1(cgroup, 0, bytes)
	})
	return err
}

// MemoryLimit implements Interface.
func (l *Library) MemoryLimit(ctx context.Context, uuid, cgroup string) (limitBytes, usedBytes uint64, err error) {
	attempt := fmt.Sprintf("query the limit of the cgroup %s on the GPU %s", cgroup, uuid)
	found, err := memoryLimits(ctx, l, uuid, getMemoryLimits, attempt, func(device gonvml.Device) (memoryLimit, gonvml.Return) {
		m, ret := device.GetMemoryLimits_v1(cgroup)
		return memoryLimit{m.HardLimit, m.CurrentUsed}, ret
	})
	return found.limit, found.used, err
}

// memoryLimits calls a function of NVML for a GPU, if the library has it.
func memoryLimits(
	ctx context.Context, l *Library, uuid, symbol, attempt string, f func(gonvml.Device) (memoryLimit, gonvml.Return),
) (memoryLimit, error) {
	return call(ctx, l, func() (memoryLimit, error) {
		device, err := l.find(uuid)
		if err != nil {
			return memoryLimit{}, err
		}
		if !l.has(symbol) {
			return memoryLimit{}, failure(attempt, gonvml.ERROR_FUNCTION_NOT_FOUND)
		}
		found, ret := f(device)
		if ret != gonvml.SUCCESS {
			return memoryLimit{}, failure(attempt, ret)
		}
		return found, nil
	})
}
