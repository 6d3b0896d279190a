package device

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	ndevice "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
)

// neverByItself is a period of the fingerprint in which no test ends.
var neverByItself = map[string]any{"fingerprint_period": "1h"}

// ask makes a claim as a container does that asks by itself.
func ask(t *testing.T, ledger *claim.Ledger, g nvml.GPU, slices int, sliceBytes uint64) *claim.Claim {
	t.Helper()
	made, err := ledger.ReserveFit(t.Context(), claim.FitRequest{
		Candidates: []claim.Candidate{{GPU: claim.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name}, Slices: 140}},
		SliceBytes: sliceBytes, LimitBytes: uint64(slices) * sliceBytes, Owner: claim.OwnerExternal,
	})
	must.NoError(t, err)
	return made
}

func startSleep(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// unhealthy maps the slices of a group that Nomad is to leave alone to the reason.
func unhealthy(group *ndevice.DeviceGroup) map[string]string {
	reasons := map[string]string{}
	for _, dev := range group.Devices {
		if !dev.Healthy {
			reasons[dev.ID] = dev.HealthDesc
		}
	}
	return reasons
}

// Claims that containers request themselves are published at once, when they are made and when they end.
func TestFingerprint_ExternalClaim(t *testing.T) {
	g := nvmltest.H200(0)
	fake := nvmltest.New(g)
	p := newPlugin(t, fake, neverByItself)
	ledger := p.node.Load().ledger
	stream := fingerprint(t, p)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	quiet(t, stream) // that the GPU is new has it look twice
	reads := fake.Reads()

	made := ask(t, ledger.Ledger, g, 2, 1<<30)
	reason := "used outside Nomad by claim " + made.ID + " (external)"
	want := map[string]string{g.UUID + "/slice-000": reason, g.UUID + "/slice-001": reason}
	group := next(t, stream).Devices[0]
	must.Eq(t, want, unhealthy(group))
	must.Eq(t, structs.NewIntAttribute(138, ""), group.Attributes["healthy_slices"])

	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: os.Getpid()}))
	quiet(t, stream) // it is used as before
	must.NoError(t, ledger.DropInUse(t.Context(), made.ID))
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	must.Eq(t, reads, fake.Reads(), must.Sprint("the driver was queried for a change of the ledger"))

	// What Nomad reserves itself is not news to it.
	_, err := p.Reserve(sliceIDs(g, 5))
	must.NoError(t, err)
	quiet(t, stream)
}

// The slices of a killed container are released at the next fingerprint, and published at once.
func TestFingerprint_ExternalClaimKilled(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), nil)
	ledger := p.node.Load().ledger
	made := ask(t, ledger.Ledger, g, 1, 1<<30)
	init := startSleep(t)
	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: init.Process.Pid}))
	stream := fingerprint(t, p)
	must.MapLen(t, 1, unhealthy(next(t, stream).Devices[0]))
	must.NoError(t, init.Process.Kill())
	_ = init.Wait()
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
}

// Claims whose slices were cut otherwise take all slices that have some of their memory.
func TestFingerprint_slicesOfAnotherSize(t *testing.T) {
	g := nvmltest.H200(0)
	p := newPlugin(t, nvmltest.New(g), map[string]any{"slice_memory": "2GiB", "fingerprint_period": "1h"})
	ledger := p.node.Load().ledger
	first := ask(t, ledger.Ledger, g, 1, 1<<30)
	second := ask(t, ledger.Ledger, g, 2, 1<<30) // the second and the third GiB
	third := ask(t, ledger.Ledger, g, 1, 1<<30)
	stream := fingerprint(t, p)
	reasons := unhealthy(next(t, stream).Devices[0])
	must.MapLen(t, 2, reasons)
	must.MapContainsKeys(t, reasons, []string{g.UUID + "/slice-000", g.UUID + "/slice-001"})
	must.StrContains(t, reasons[g.UUID+"/slice-001"], third.ID)

	_, err := p.Reserve(sliceIDs(g, 0))
	must.ErrorContains(t, err, "held by claim")
	must.NoError(t, ledger.Cancel(t.Context(), first.ID))
	must.NoError(t, ledger.Cancel(t.Context(), second.ID))
	_, err = p.Reserve(sliceIDs(g, 0))
	must.NoError(t, err)
	_, err = p.Reserve(sliceIDs(g, 1))
	must.ErrorContains(t, err, "held by claim "+third.ID)
}

// A ledger in which nothing can be written is no place to send tasks to: all devices are unhealthy, with the reason, until it
// can.
func TestFingerprint_unusableLedger(t *testing.T) {
	a, b := nvmltest.H200(0), nvmltest.H200(1)
	state := filepath.Join(t.TempDir(), "state")
	must.NoError(t, os.WriteFile(state, nil, 0o600))
	p := newPlugin(t, nvmltest.New(a, b), map[string]any{
		"state_dir": state, "gpu": gpuBlocks(map[string]any{"gpu": "index:1", "mode": "exclusive"}),
	})
	stream := fingerprint(t, p)
	for _, group := range next(t, stream).Devices {
		for _, device := range group.Devices {
			must.False(t, device.Healthy)
			must.StrContains(t, device.HealthDesc, "no claim can be made: ")
			must.StrContains(t, device.HealthDesc, state)
			must.StrContains(t, device.HealthDesc, "not a directory")
		}
	}
	_, err := p.Reserve(sliceIDs(a, 0))
	must.ErrorContains(t, err, "not a directory")
	quiet(t, stream)
	must.NoError(t, os.Remove(state))
	for _, group := range next(t, stream).Devices {
		must.MapEmpty(t, unhealthy(group))
	}
}

// What others have stays theirs while the ledger cannot be read.
func TestFingerprint_ExternalUseWithUnreadableLedger(t *testing.T) {
	g := nvmltest.H200(0)
	options := testOptions(t, nil)
	p := newPlugin(t, nvmltest.New(g), options)
	made := ask(t, p.node.Load().ledger.Ledger, g, 2, 1<<30)
	init := startSleep(t)
	must.NoError(t, p.node.Load().ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: init.Process.Pid}))
	stream := fingerprint(t, p)
	must.MapContainsKeys(t, unhealthy(next(t, stream).Devices[0]), sliceIDs(g, 0, 1))

	lock := filepath.Join(options["state_dir"].(string), "claims", ".lock")
	must.NoError(t, os.Mkdir(lock+"ed", 0o700))
	// Atomically, because any read of the ledger creates the file.
	exchange := func() error {
		return unix.Renameat2(unix.AT_FDCWD, lock, unix.AT_FDCWD, lock+"ed", unix.RENAME_EXCHANGE)
	}
	must.NoError(t, exchange())
	reasons := unhealthy(next(t, stream).Devices[0])
	must.MapLen(t, 140, reasons)
	for _, id := range sliceIDs(g, 0, 1) {
		must.Eq(t, "used outside Nomad by claim "+made.ID+" (external)", reasons[id])
	}
	must.StrContains(t, reasons[sliceIDs(g, 2)[0]], "no claim can be made: ")
	must.NoError(t, exchange())
	must.MapLen(t, 2, unhealthy(next(t, stream).Devices[0]))
}

// Containers come in crowds, and each message registers the node again.
func TestCollectChanges(t *testing.T) {
	events, lost, changes := make(chan fsnotify.Event), make(chan error), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { collectChanges(ctx, events, lost, changes) })
	changed := func() bool {
		select {
		case <-changes:
			return true
		case <-time.After(3 * ledgerSettles):
			return false
		}
	}
	for range 100 {
		events <- fsnotify.Event{Name: "/ledger/0badcafe.json"}
	}
	must.True(t, changed())
	must.False(t, changed())
	for _, name := range []string{"/ledger/.new", "/ledger/.lock", "/ledger/notes.txt"} {
		events <- fsnotify.Event{Name: name}
	}
	must.False(t, changed(), must.Sprint("these are no claims"))
	lost <- fsnotify.ErrEventOverflow
	must.True(t, changed())
	cancel()
	wg.Wait()
}
