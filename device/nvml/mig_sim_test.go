package nvml_test

import (
	"context"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/mig"
	"github.com/tranche-gpu/tranche/device/nvml"
)

func profileNamed(t *testing.T, profiles []mig.Profile, name string) mig.Profile {
	t.Helper()
	for _, p := range profiles {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no profile %s among %v", name, profiles)
	return mig.Profile{}
}

func read(t *testing.T, library *nvml.Library) []nvml.GPU {
	t.Helper()
	node, err := library.Read(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, node.Failed)
	return node.GPUs
}

// Instances are made, listed and destroyed, as the driver's own rules have it.
func TestMIG_simulated(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		node := simtest.New(t, "h100x8.conf")
		library := nvml.New(node.DriverRoot)
		ctx := t.Context()
		gpu := read(t, library)[1]
		must.Eq(t, nvml.MIG{Capable: true}, gpu.MIG)

		must.NoError(t, library.SetMIG(ctx, gpu.UUID, true))
		gpu = read(t, library)[1]
		must.True(t, gpu.MIG.Enabled)
		must.SliceEmpty(t, gpu.MIG.Instances)

		profiles, err := library.MIGProfiles(ctx, gpu.UUID)
		must.NoError(t, err)
		three := profileNamed(t, profiles, "3g.40gb")
		must.Eq(t, []mig.Place{{Start: 0, Size: 4}, {Start: 4, Size: 4}}, three.Places)
		must.Eq(t, 2, three.Max)
		must.Between(t, 39<<30, three.Bytes, 40<<30)

		made, err := library.CreateInstance(ctx, gpu.UUID, three, mig.Place{Start: 4, Size: 4})
		must.NoError(t, err)
		must.True(t, strings.HasPrefix(made.UUID, "MIG-"), must.Sprint(made.UUID))
		must.Eq(t, gpu.Name+" MIG 3g.40gb", made.Name)
		must.Eq(t, 60, made.Multiprocessors)
		must.Between(t, 39<<30, made.MemoryBytes, 40<<30)

		_, err = library.CreateInstance(ctx, gpu.UUID, three, mig.Place{Start: 4, Size: 4})
		must.ErrorContains(t, err, "create an instance 3g.40gb at slot 4 of the GPU "+gpu.UUID)
		must.ErrorContains(t, err, "nsufficient")

		one := profileNamed(t, profiles, "1g.10gb")
		other, err := library.CreateInstance(ctx, gpu.UUID, one, mig.Place{Start: 2, Size: 1})
		must.NoError(t, err)
		must.Len(t, 2, read(t, library)[1].MIG.Instances)
		must.SliceContains(t, read(t, library)[1].MIG.Instances, made)
		must.SliceContains(t, read(t, library)[1].MIG.Instances, other)
		must.SliceEmpty(t, read(t, library)[0].MIG.Instances, must.Sprint("another GPU"))

		must.NoError(t, library.DestroyInstance(ctx, gpu.UUID, made.GPUInstance))
		must.NoError(t, library.DestroyInstance(ctx, gpu.UUID, made.GPUInstance), must.Sprint("it is gone already"))
		must.Eq(t, []nvml.MIGInstance{other}, read(t, library)[1].MIG.Instances)
		must.NoError(t, library.Close(context.WithoutCancel(ctx)))
	})
}

// A GPU that was detached from the driver to turn MIG on has its events after that, too.
func TestMIG_EventsAfterwards(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		node := simtest.New(t, "a100-40x8.conf")
		library := nvml.New(node.DriverRoot)
		gpu := read(t, library)[1]
		s := &simulated{Node: node, library: library, events: library.Events(t.Context()), xid: 1000}
		s.listens(t, "1", gpu.UUID)
		must.NoError(t, library.SetMIG(t.Context(), gpu.UUID, true))
		must.True(t, read(t, library)[1].MIG.Enabled)
		s.Run(t, "fault", "xid", "1", "79")
		must.Eq(t, nvml.Event{UUID: gpu.UUID, Xid: 79}, s.next(t))
		must.NoError(t, library.EventsError())
		must.NoError(t, library.Close(context.WithoutCancel(t.Context())))
	})
}

// A GPU that has no MIG says so, and what was asked of it fails.
func TestMIG_None(t *testing.T) {
	simtest.InProcess(t, func(t *testing.T) {
		node := simtest.New(t, "mixed.conf")
		library := nvml.New(node.DriverRoot)
		gpus := read(t, library)
		for _, gpu := range gpus {
			must.Eq(t, gpu.Name != "Tesla T4", gpu.MIG.Capable, must.Sprint(gpu.Name))
		}
		must.Eq(t, 621<<20, gpus[0].ReservedBytes, must.Sprint("what the topology says that the driver keeps"))
		t4 := gpus[len(gpus)-1]
		must.Error(t, library.SetMIG(t.Context(), t4.UUID, true))
		_, err := library.CreateInstance(t.Context(), t4.UUID, mig.Profile{Name: "1g.4gb"}, mig.Place{Size: 1})
		must.ErrorContains(t, err, "Not Supported")
		must.NoError(t, library.DestroyInstance(t.Context(), t4.UUID, 3), must.Sprint("there are none"))
	})
}
