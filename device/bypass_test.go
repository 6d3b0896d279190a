package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// reserved makes a claim on a slice, and its region.
func (n *unmanagedNode) reserved(t *testing.T, slice int) (made *claim.Claim, regionDir string) {
	t.Helper()
	node := n.node.Load()
	claimtest.RemoveRegions(t, node.runDir)
	must.NoError(t, node.scanner.scan(t.Context()))
	reservation, err := n.Reserve([]string{claim.SliceName(n.gpu.UUID, slice)})
	must.NoError(t, err)
	made, err = node.ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	regionDir, err = node.ledger.PrepareRegion(t.Context(), made.ID, "c", 0)
	must.NoError(t, err)
	return made, regionDir
}

// bound makes a claim on a slice and binds it to a container with this first process.
func (n *unmanagedNode) bound(t *testing.T, slice, pid int) *claim.Claim {
	t.Helper()
	made, _ := n.reserved(t, slice)
	n.bind(t, made, pid)
	return made
}

func (n *unmanagedNode) bind(t *testing.T, c *claim.Claim, pid int) {
	t.Helper()
	must.NoError(t, n.node.Load().ledger.Bind(t.Context(), c.ID, claim.Container{Runtime: "test", ID: "c", InitPID: pid}))
}

// look has the plugin look at the GPUs, some time later, and returns what it has published by then.
func (n *unmanagedNode) look(t *testing.T, later time.Duration) map[string]health.Condition {
	t.Helper()
	node := n.node.Load()
	n.clock.later.Add(int64(later))
	node.unmanaged.update(t.Context(), node.published.readHealth().Bypassing)
	node.published.publishHealth(node.inventory.list(), node.unmanaged.bypasses.lasting())
	report, err := health.Read(node.runDir)
	must.NoError(t, err)
	return report.Bypassing
}

// A claim whose container holds memory that none of its processes counts is published, once that has lasted. One without
// memory is not, nor one that holds memory for a moment.
func TestBypass(t *testing.T) {
	n := newUnmanagedNode(t)
	past, idle := startSleep(t), startSleep(t)
	bypassed := n.bound(t, 0, past.Process.Pid)
	n.bound(t, 1, idle.Process.Pid)

	holders := []nvml.Process{holding(past.Process.Pid, 5<<10), {PID: idle.Process.Pid}, holding(startSleep(t).Process.Pid, 1<<10)}
	n.fake.SetProcesses(n.gpu.UUID, holders...)
	must.MapEmpty(t, n.look(t, 0))
	must.MapEmpty(t, n.look(t, bypassSettles-time.Second))
	n.fake.SetProcesses(n.gpu.UUID)
	must.MapEmpty(t, n.look(t, time.Minute), must.Sprint("it was for a moment"))

	n.fake.SetProcesses(n.gpu.UUID, holders...)
	must.MapEmpty(t, n.look(t, 0))
	said := n.look(t, bypassSettles)
	must.MapLen(t, 1, said)
	must.StrContains(t, said[bypassed.ID].Problem, fmt.Sprintf("process %d (5GiB)", past.Process.Pid))

	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 6<<10))
	must.Eq(t, said, n.look(t, time.Hour), must.Sprint("it is the same condition"))
	n.fake.SetError(errors.New("NVML does not answer"))
	must.Eq(t, said, n.look(t, time.Second), must.Sprint("NVML does not say"))
	n.fake.SetError(nil)

	dirs := map[string]any{"state_dir": n.node.Load().stateDir, "run_dir": n.node.Load().runDir}
	again := newPlugin(t, n.fake, dirs)
	restarted := &unmanagedNode{Plugin: again, gpu: n.gpu, fake: n.fake, clock: moveByHand(again)}
	must.NoError(t, again.node.Load().scanner.scan(t.Context()))
	must.Eq(t, said, restarted.look(t, 0), must.Sprint("the plugin was restarted"))
	n.fake.SetProcesses(n.gpu.UUID)
	must.MapEmpty(t, restarted.look(t, 0))
}

// It is published at once when it has lasted, and not with the next period only.
func TestBypass_Recheck(t *testing.T) {
	n := newUnmanagedNode(t)
	past := startSleep(t)
	bypassed := n.bound(t, 0, past.Process.Pid)
	stream := fingerprint(t, n)
	next(t, stream)
	n.hold(holding(past.Process.Pid, 5<<10))
	settling := next(t, n.clock.set)
	must.Eq(t, bypassSettles, settling.wait)
	n.clock.goOff(settling)
	published := func() bool {
		report, err := health.Read(n.node.Load().runDir)
		return err == nil && report.Bypassing[bypassed.ID].Problem != ""
	}
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(published), wait.Timeout(patience), wait.Gap(time.Millisecond)))
}

// On the simulated GPU, whose record says what both hold: a program in a container that loads the driver itself, and one
// that loads the shadow library.
func TestBypass_Simulated(t *testing.T) { simtest.InProcess(t, testBypassSimulated) }

func testBypassSimulated(t *testing.T) {
	node := simtest.H200x2(t)
	p := newPlugin(t, nvml.New(node.DriverRoot), map[string]any{"driver_root": node.DriverRoot})
	n := &unmanagedNode{Plugin: p, clock: moveByHand(p)}
	n.gpu.UUID = simtest.H200UUID0

	counted, region := n.reserved(t, 0)
	counting := holdMemory(t, 100<<20, throughShadow(t, counted.ID, region)...)
	n.bind(t, counted, counting.Process.Pid)
	usage, err := p.node.Load().ledger.UsageOf(counted)
	must.NoError(t, err)
	must.Len(t, 1, usage.Processes, must.Sprint("the program did not load the shadow library"))
	past := holdMemory(t, 2<<30)
	bypassed := n.bound(t, 1, past.Process.Pid)
	must.GreaterEq(t, 2<<30+100<<20, node.UsedBytes(t, simtest.H200UUID0))

	must.MapEmpty(t, n.look(t, 0))
	said := n.look(t, bypassSettles)
	must.MapLen(t, 1, said)
	must.StrContains(t, said[bypassed.ID].Problem, fmt.Sprintf("process %d (2", past.Process.Pid))
	must.NoError(t, past.Process.Kill())
	_ = past.Wait()
	must.MapEmpty(t, n.look(t, 0))
}

// throughShadow is the environment by which a program outside a container loads the shadow library with a claim.
func throughShadow(t *testing.T, claimID, regionDir string) []string {
	t.Helper()
	lib, regions := t.TempDir(), t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(lib, ".tranche"), 0o700))
	must.NoError(t, os.Symlink(regionDir, filepath.Join(regions, claimID)))
	for link, target := range map[string]string{
		"libcuda.so.1": "../build/lib/libcuda.so.1", ".tranche/driver-libcuda.so": "../build/sim/lib/libcuda.so.1",
	} {
		path, err := filepath.Abs(target)
		must.NoError(t, err)
		must.NoError(t, os.Symlink(path, filepath.Join(lib, link)))
	}
	return []string{"LD_LIBRARY_PATH=" + lib, "TRANCHE_REGIONS=" + regions}
}
