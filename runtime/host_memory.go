package runtime

import (
	"fmt"

	"github.com/tranche-gpu/tranche/internal/size"
)

// GPUHostMemoryEnv names the environment variable by which a container requests host memory beyond its limit from
// tranche-runtime, such as "4GiB": managed memory that is on the host. The setting gpu_host_memory_max bounds it.
const GPUHostMemoryEnv = "TRANCHE_GPU_HOST_MEMORY"

// GPUHostMemory parses the host memory that a container requests, in bytes, and refuses more than maxBytes. An empty text
// requests none. The option is the request's source, which errors name.
func GPUHostMemory(option, requested string, maxBytes uint64) (uint64, error) {
	if requested == "" {
		return 0, nil
	}
	bytes, err := size.Parse(requested)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", option, err)
	}
	if bytes <= maxBytes {
		return bytes, nil
	}
	allowed := "no host memory"
	if maxBytes > 0 {
		allowed = "at most " + size.Format(maxBytes) + " of host memory"
	}
	return 0, fmt.Errorf("%s = %q: this node allows a container %s beyond its limit of GPU memory; "+
		"the operator can allow more with gpu_host_memory_max", option, requested, allowed)
}
