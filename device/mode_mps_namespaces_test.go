package device

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/mps"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// Each claim has a namespace when its reservation is answered, as long as it is in the ledger.
func TestMPS_namespaces(t *testing.T) {
	g := nvmltest.H200(0)
	k := newFakeManager()
	k.v3 = true
	p := newMPSPlugin(t, nvmltest.New(g), k, map[string]any{"enforcement": "library"})
	_, err := p.Reserve(sliceIDs(g, 0, 1, 2))
	must.NoError(t, err)
	first := claimsOf(t, p)[0]
	must.Eq(t, []mps.Namespace{{Name: first.ID, Percentage: 43, LimitBytes: 60 << 30}}, k.namespaces)

	k.assignErr = errors.New("there is no room")
	_, err = p.Reserve(sliceIDs(g, 3))
	must.ErrorContains(t, err, "there is no room")
	must.Len(t, 1, claimsOf(t, p), must.Sprint("a claim without a namespace is left"))

	k.assignErr = nil
	must.NoError(t, p.node.Load().ledger.Drop(t.Context(), first.ID))
	next(t, fingerprint(t, p))
	must.SliceEmpty(t, k.namespaces)
}

// Before MPS v3 the library enforces limits, and a GPU on which the driver is to do that has nothing to offer.
func TestMPS_enforcementWithoutNamespaces(t *testing.T) {
	needs.Root(t, "to make cgroups")
	g := nvmltest.H200(0)
	driver := nvmltest.New(g)
	driver.AllowMemoryLimits()
	p := newMPSPlugin(t, driver, newFakeManager(), nil)
	group := next(t, fingerprint(t, p)).Devices[0]
	must.Eq(t, structs.NewStringAttribute("library"), group.Attributes["enforcement"])
	must.MapEmpty(t, unhealthy(group))
	_, err := p.Reserve(sliceIDs(g, 0))
	must.NoError(t, err)
	must.Eq(t, claim.EnforcementLibrary, claimsOf(t, p)[0].Enforced())

	p = newMPSPlugin(t, driver, newFakeManager(), map[string]any{"enforcement": "driver"})
	reasons := unhealthy(next(t, fingerprint(t, p)).Devices[0])
	must.MapLen(t, 7, reasons)
	for _, reason := range reasons {
		must.StrContains(t, reason, "its MPS control daemon has no namespaces")
	}
	_, err = p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, "its MPS control daemon has no namespaces")
	must.SliceEmpty(t, claimsOf(t, p))
}

// With driver 615 a claim has a namespace of the simulated daemon, and the driver enforces its limit.
func TestMPSSim_namespaces(t *testing.T) {
	needs.Root(t, "to start an MPS control daemon")
	simtest.InProcess(t, func(t *testing.T) {
		node := simtest.New(t, "h200x2-r615.conf")
		gpus := nvml.New(node.DriverRoot)
		runDir, err := os.MkdirTemp("", "mps")
		must.NoError(t, err)
		p := newPlugin(t, gpus, testOptions(t, map[string]any{
			"driver_root": node.DriverRoot, "run_dir": runDir, "slice_memory": "10GiB",
			"gpu": gpuBlocks(map[string]any{"gpu": "index:1", "mode": "mps"}),
		}))
		daemons := p.node.Load().daemons
		t.Cleanup(func() {
			daemons.Manager.Close()
			_ = daemons.Manager.Release(context.Background(), simtest.H200UUID1)
			must.NoError(t, gpus.Close(context.Background()))
			must.NoError(t, os.RemoveAll(runDir))
		})
		stream := fingerprint(t, p)
		group := next(t, stream).Devices[1]
		must.MapEmpty(t, unhealthy(group))
		must.Eq(t, structs.NewStringAttribute("driver"), group.Attributes["enforcement"])
		_, err = p.Reserve([]string{claim.SliceName(simtest.H200UUID1, 0)})
		must.NoError(t, err)
		made := claimsOf(t, p)[0]
		must.Eq(t, claim.EnforcementDriver, made.Enforced())
		socket := filepath.Join(runDir, "mps", simtest.H200UUID1, "ns", made.ID, "control")
		must.FileExists(t, socket)

		must.NoError(t, p.node.Load().ledger.Drop(t.Context(), made.ID))
		_, err = p.Reserve([]string{claim.SliceName(simtest.H200UUID1, 1)})
		must.NoError(t, err)
		must.FileNotExists(t, socket)
	})
}
