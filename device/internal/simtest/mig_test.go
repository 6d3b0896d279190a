package simtest

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// Every field of the record is decoded.
func TestMIG_recordOfInstances(t *testing.T) {
	needs.Root(t, "to make MIG instances")
	node := New(t, "mixed.conf")
	node.SMI(t, "-i", "2", "-mig", "1")
	node.SMI(t, "mig", "-i", "2", "-cgi", "3g.40gb:4", "-C")
	record := node.MIG(t)
	must.Len(t, 3, record.GPUs) // the T4 has no MIG
	must.False(t, record.GPUs[0].Mode)
	must.True(t, record.GPUs[2].Mode && record.GPUs[2].Pending)
	must.Len(t, 1, record.GPUs[2].Instances)
	instance := record.GPUs[2].Instances[0]
	must.Eq(t, []int{2, 9, 4, 4}, []int{instance.ID, instance.ProfileID, instance.Start, instance.Size})
	must.Eq(t, "3g.40gb", instance.Profile)
	must.Positive(t, instance.MemoryBytes)
	must.Positive(t, instance.CreatedNS)
	must.Eq(t, 0, instance.UsedBytes)
	must.Len(t, 1, instance.Compute)
	compute := instance.Compute[0]
	must.StrHasPrefix(t, "MIG-", compute.UUID)
	must.Eq(t, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", compute.Name)
	must.Eq(t, []int{0, 0, 3, 60}, []int{compute.ID, compute.Start, compute.Size, compute.SMCount})
	must.Positive(t, compute.CreatedNS)
	must.SliceEmpty(t, compute.Processes)
	must.Eq(t, 0, node.UsedBytes(t, compute.UUID))

	node.SMI(t, "mig", "-dci")
	node.SMI(t, "mig", "-dgi")
	record = node.MIG(t)
	must.SliceEmpty(t, record.GPUs[2].Instances)
	must.Len(t, 5, record.Events)
	for i, want := range []string{"mode", "gi-created", "ci-created", "ci-destroyed", "gi-destroyed"} {
		event := record.Events[i]
		must.Eq(t, want, event.What)
		must.Eq(t, uint64(i+1), event.Serial)
		must.Eq(t, record.GPUs[2].UUID, event.GPUUUID)
		must.Positive(t, event.PID)
		must.Positive(t, event.TimeNS)
	}
	must.True(t, record.Events[0].Mode)
	must.Eq(t, []int{2, 4, 4}, []int{record.Events[4].GI, record.Events[4].Start, record.Events[4].Size})
	must.Eq(t, "3g.40gb", record.Events[4].Profile)
}
