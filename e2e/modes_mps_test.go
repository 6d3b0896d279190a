//go:build e2e

package e2e

import (
	"testing"

	"github.com/shoenig/test/must"
)

// sideBySide is the example of tasks behind MPS, where a context takes less of the GPU than it is counted at.
var sideBySide = modeExample{
	name: "mps", count: 2, devices: 20, group: "nvidia/slice/NVIDIA H100 80GB HBM3 #2", gpu: 2,
	seesName: "NVIDIA H100 80GB HBM3", sees: 20 * gib, nvml: 20 * gib, takes: 20 * gib, slack: 302 * mib,
}

// TestModeMPS runs the example of MPS. Its tasks have limits in the environment that MPS goes by, and MPS a client in each.
func TestModeMPS(t *testing.T) {
	n := startMixed(t)
	allocs := runExample(t, n, sideBySide.name, sideBySide.count)
	sideBySide.check(t, n, allocs)
	for _, alloc := range allocs {
		init, err := n.InitPID(deadline(t), alloc.ID, "probe")
		must.NoError(t, err)
		must.Eq(t, "26", containerEnv(t, init, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), must.Sprint("20 of 79 slices"))
		must.StrContains(t, containerEnv(t, init, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "20480M")
	}
	endsClean(t, n, sideBySide.name)
}
