package nvml_test

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// A library as the loader sees it. A process is bound to the first NVML that it
// loads: tests share it, each with a node of its own.
func TestLibrary_simulated(t *testing.T) {
	node := simtest.H200x2(t)
	library := nvml.New(node.DriverRoot)
	got, err := library.Read(t.Context())
	must.NoError(t, err)
	must.Eq(t, "570.124.06", got.DriverVersion)
	must.Eq(t, "12.8", got.CUDAVersion)
	must.Len(t, 2, got.GPUs)
	gpu := got.GPUs[1]
	must.Eq(t, 1, gpu.Index)
	must.Eq(t, 1, gpu.Minor)
	must.Eq(t, simtest.H200UUID1, gpu.UUID)
	must.Eq(t, "NVIDIA H200", gpu.Name)
	must.Eq(t, "00000000:3B:00.0", gpu.PCIBusID)
	must.Eq(t, "9.0", gpu.ComputeCapability)
	must.Eq(t, simtest.MemoryBytes, gpu.MemoryBytes)
	must.Less(t, 1<<30, gpu.ReservedBytes)
	must.Eq(t, 0, gpu.UtilizationPercent)

	processes, err := library.Processes(t.Context(), simtest.H200UUID1)
	must.NoError(t, err)
	must.SliceEmpty(t, processes)

	node.Run(t, "fault", "lost", "0", "on")
	got, err = library.Read(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, got.GPUs)
	must.Len(t, 1, got.Failed)
	must.Eq(t, simtest.H200UUID0, got.Failed[0].UUID)
	must.ErrorContains(t, got.Failed[0].Err, "GPU is lost")

	node.Run(t, "fault", "lost", "0", "off")
	deadline := time.Now().Add(time.Minute)
	for len(got.GPUs) != 2 {
		must.True(t, time.Now().Before(deadline), must.Sprint("the GPU did not come back"))
		got, err = library.Read(t.Context())
		must.NoError(t, err)
	}
	must.NoError(t, library.Close(t.Context()))
}
