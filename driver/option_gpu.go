package driver

import (
	"errors"

	"github.com/tranche-gpu/tranche/driver/gpu"
	"github.com/tranche-gpu/tranche/runtime"
)

// checkGPU checks the options about GPUs.
func (c *TaskConfig) checkGPU(plugin *Config) error {
	_, err := c.gpuHostMemoryBytes(plugin)
	return errors.Join(err, gpu.CheckOptions(c.Annotations.merged(), c.Devices))
}

// gpuHostMemoryBytes is gpu_host_memory, of which validate has made sure.
func (c *TaskConfig) gpuHostMemoryBytes(plugin *Config) (uint64, error) {
	most, err := plugin.gpuHostMemoryMaxBytes()
	if err != nil {
		return 0, err
	}
	return runtime.GPUHostMemory("option gpu_host_memory", c.GPUHostMemory, most)
}
