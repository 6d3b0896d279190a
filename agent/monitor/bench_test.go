package monitor

import (
	"fmt"
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// BenchmarkSnapshot takes snapshots of eight GPUs and a hundred claims; NVML costs nothing.
func BenchmarkSnapshot(b *testing.B) {
	runDir := b.TempDir()
	claimtest.RemoveRegions(b, runDir)
	ledger, err := claim.Open(claim.Options{StateDir: b.TempDir(), RunDir: runDir})
	must.NoError(b, err)
	var gpus []nvml.GPU
	for index := range 8 {
		gpus = append(gpus, nvmltest.H200(index))
	}
	fake := nvmltest.New(gpus...)
	var requests []claim.Request
	for i := range 100 {
		uuid := gpus[i%8].UUID
		fake.SetProcesses(uuid, nvml.Process{PID: os.Getpid(), UsedBytes: gib, UsedKnown: true})
		requests = append(requests, claim.Request{
			GPU: claim.GPU{UUID: uuid}, Slices: []string{fmt.Sprintf("%s/slice-%03d", uuid, i/8)}, SliceBytes: gib, LimitBytes: gib,
			Owner: claim.OwnerNomad,
		})
	}
	made, _, err := ledger.ReserveAll(b.Context(), requests)
	must.NoError(b, err)
	for _, c := range made {
		must.NoError(b, ledger.Bind(b.Context(), c.ID, claim.Container{Runtime: "runc", ID: "c-" + c.ID, InitPID: os.Getpid()}))
	}
	m := New(Options{Ledger: ledger, NVML: fake, RunDir: runDir, SliceBytes: gib})
	for b.Loop() {
		m.take(b.Context())
	}
}
