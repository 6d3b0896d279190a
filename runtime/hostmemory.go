package runtime

import (
	"fmt"

	"github.com/tranche-gpu/tranche/claim/memsize"
)

// GPUHostMemoryEnv names the environment variable by which a container asks tranche-runtime for memory beyond its limit,
// such as "4GiB": managed memory that lives on the host. It asks in vain where the node's gpu_host_memory_max is less.
const GPUHostMemoryEnv = "TRANCHE_GPU_HOST_MEMORY"

// GPUHostMemory reads how much memory a container asks for beyond its limit, and refuses more than the node allows any
// container. An empty text asks for none. The option is where it was asked for, as errors are to name it.
func GPUHostMemory(option, asked string, maxBytes uint64) (uint64, error) {
	if asked == "" {
		return 0, nil
	}
	bytes, err := memsize.Parse(asked)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", option, err)
	}
	if bytes <= maxBytes {
		return bytes, nil
	}
	allowed := "no host memory"
	if maxBytes > 0 {
		allowed = "at most " + memsize.Format(maxBytes) + " of host memory"
	}
	return 0, fmt.Errorf("%s = %q: this node allows a container %s beyond its limit of GPU memory; "+
		"the operator can allow more with gpu_host_memory_max", option, asked, allowed)
}
