package nvml

import (
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// read reads all of Node.
func (l *Library) read() (*Node, error) {
	driver, ret := l.lib.SystemGetDriverVersion()
	if ret != gonvml.SUCCESS {
		return nil, failure("read the driver's version", ret)
	}
	cuda, ret := l.lib.SystemGetCudaDriverVersion()
	if ret != gonvml.SUCCESS {
		return nil, failure("read the CUDA version", ret)
	}
	count, ret := l.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nil, failure("count the GPUs", ret)
	}
	node := &Node{
		DriverVersion: driver,
		CUDAVersion:   fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10),
	}
	for index := range count {
		gpu, err := l.readGPU(index)
		if err != nil {
			node.Failed = append(node.Failed, Failure{Index: index, UUID: l.uuids[index], Err: err})
			continue
		}
		node.GPUs = append(node.GPUs, *gpu)
	}
	return node, nil
}

// readGPU reads all of a GPU.
func (l *Library) readGPU(index int) (*GPU, error) {
	device, ret := l.lib.DeviceGetHandleByIndex(index)
	if ret != gonvml.SUCCESS {
		return nil, failure(fmt.Sprintf("find the GPU at index %d", index), ret)
	}
	gpu := &GPU{Index: index}
	for _, property := range []struct {
		name string
		read func(gonvml.Device, *GPU) gonvml.Return
	}{
		{"UUID", l.readUUID},
		{"name", readName},
		{"PCI bus ID", readPCI},
		{"device node", readMinor},
		{"compute capability", readComputeCapability},
		{"memory", readMemory},
		{"reserved memory", l.readReserved},
		{"utilisation", readUtilization},
		{"MIG instances", l.readMIG},
	} {
		if ret := property.read(device, gpu); ret != gonvml.SUCCESS {
			return nil, failure(fmt.Sprintf("read the %s of the GPU at index %d", property.name, index), ret)
		}
	}
	if err := l.readTraits(device, gpu); err != nil {
		return nil, err
	}
	return gpu, nil
}

// readUUID also records the UUID, so that a GPU that stops answering can be named.
func (l *Library) readUUID(device gonvml.Device, gpu *GPU) (ret gonvml.Return) {
	gpu.UUID, ret = device.GetUUID()
	if ret == gonvml.SUCCESS {
		l.uuids[gpu.Index] = gpu.UUID
	}
	return ret
}

func readName(device gonvml.Device, gpu *GPU) (ret gonvml.Return) {
	gpu.Name, ret = device.GetName()
	return ret
}

func readPCI(device gonvml.Device, gpu *GPU) gonvml.Return {
	info, ret := device.GetPciInfo()
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		gpu.PCIBusID += string(rune(c))
	}
	return ret
}

func readMinor(device gonvml.Device, gpu *GPU) (ret gonvml.Return) {
	gpu.Minor, ret = device.GetMinorNumber()
	return ret
}

func readComputeCapability(device gonvml.Device, gpu *GPU) gonvml.Return {
	major, minor, ret := device.GetCudaComputeCapability()
	gpu.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	return ret
}

func readMemory(device gonvml.Device, gpu *GPU) gonvml.Return {
	memory, ret := device.GetMemoryInfo()
	gpu.MemoryBytes, gpu.UsedBytes = memory.Total, memory.Used
	return ret
}

// readReserved reads the reserved memory, which only the second version of the memory information has. A driver without it
// is not an error.
func (l *Library) readReserved(device gonvml.Device, gpu *GPU) gonvml.Return {
	if !l.has("nvmlDeviceGetMemoryInfo_v2") {
		return gonvml.SUCCESS
	}
	memory, ret := device.GetMemoryInfo_v2()
	switch ret {
	case gonvml.SUCCESS:
		gpu.ReservedBytes = memory.Reserved
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_ARGUMENT_VERSION_MISMATCH:
		return gonvml.SUCCESS
	}
	return ret
}

// readUtilization reads the utilization, which is unknown in MIG mode.
func readUtilization(device gonvml.Device, gpu *GPU) gonvml.Return {
	utilization, ret := device.GetUtilizationRates()
	switch ret {
	case gonvml.SUCCESS:
		gpu.UtilizationPercent = int(utilization.Gpu)
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_NO_DATA:
		gpu.UtilizationPercent = -1
		return gonvml.SUCCESS
	}
	return ret
}
