//go:build e2e

package e2e

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestHostMemory runs the same program with and without host memory beyond its limit: with it the program gets that much
// more, and the GPU gives it no more than before.
func TestHostMemory(t *testing.T) {
	n := startNode(t, func(c *node.Config) { c.DriverConfig = "gpu_host_memory_max = \"1GiB\"\n" })
	const limit, hostMemory = 2 * gib, 512 * mib
	taken := map[string]uint64{}
	for job, config := range map[string]string{"within": "", "beyond": `gpu_host_memory = "512MiB"`} {
		start(t, n, task{
			job: job, command: "gpu-probe", args: []string{"fill"}, devices: []string{anyGPU(2)}, configExtra: config,
		})
		alloc := running(t, n, job)
		var full struct {
			Taken uint64 `json:"taken"`
			Name  string `json:"name"`
		}
		must.NoError(t, json.Unmarshal([]byte(saysLine(t, n, alloc.ID, `"full"`)), &full))
		must.Eq(t, "CUDA_ERROR_OUT_OF_MEMORY", full.Name)
		saysLine(t, n, alloc.ID, `"computing"`)
		taken[job] = full.Taken
		for _, g := range held(t, n, alloc.ID) {
			must.LessEq(t, limit, g.PeakBytes)
		}
		must.NoError(t, n.StopJob(deadline(t), job))
	}
	must.Less(t, limit, taken["within"])
	must.Eq(t, hostMemory, taken["beyond"]-taken["within"])

	start(t, n, task{job: "greedy", command: "gpu-probe", devices: []string{anyGPU(2)}, configExtra: `gpu_host_memory = "2GiB"`})
	failsWith(t, n, "greedy", `option gpu_host_memory = "2GiB"`, "at most 1GiB", "gpu_host_memory_max")
	mustBeFree(t, n)
}
