package nvml

import (
	"context"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ComputeMode says which processes may compute on a GPU.
type ComputeMode int

// The compute modes of NVML that GPUs have today.
const (
	ComputeDefault          ComputeMode = ComputeMode(gonvml.COMPUTEMODE_DEFAULT)
	ComputeProhibited       ComputeMode = ComputeMode(gonvml.COMPUTEMODE_PROHIBITED)
	ComputeExclusiveProcess ComputeMode = ComputeMode(gonvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
)

// String returns the name as nvidia-smi prints it.
func (m ComputeMode) String() string {
	switch m {
	case ComputeDefault:
		return "Default"
	case ComputeProhibited:
		return "Prohibited"
	case ComputeExclusiveProcess:
		return "Exclusive_Process"
	}
	return "Exclusive_Thread"
}

func queryComputeMode(device gonvml.Device, h *Health) gonvml.Return {
	mode, ret := device.GetComputeMode()
	if ret == gonvml.SUCCESS {
		m := ComputeMode(mode)
		h.ComputeMode = &m
	}
	return ret
}

// SetComputeMode implements Interface.
func (l *Library) SetComputeMode(ctx context.Context, uuid string, mode ComputeMode) error {
	_, err := call(ctx, l, func() (struct{}, error) {
		device, err := l.find(uuid)
		if err != nil {
			return struct{}{}, err
		}
		attempt := "set the compute mode of the GPU " + uuid + " to " + mode.String()
		if !l.has("nvmlDeviceSetComputeMode") {
			return struct{}{}, failure(attempt, gonvml.ERROR_FUNCTION_NOT_FOUND)
		}
		if ret := device.SetComputeMode(gonvml.ComputeMode(mode)); ret != gonvml.SUCCESS {
			return struct{}{}, failure(attempt, ret)
		}
		return struct{}{}, nil
	})
	return err
}
