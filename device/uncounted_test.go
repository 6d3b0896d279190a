package device

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
)

// reserved makes a claim on a slice, and its region.
func (n *unmanagedNode) reserved(t *testing.T, slice int) *claim.Claim {
	t.Helper()
	node := n.node.Load()
	claimtest.RemoveRegions(t, node.runDir)
	must.NoError(t, node.scanner.scan(t.Context()))
	reservation, err := n.Reserve([]string{claim.SliceName(n.gpu.UUID, slice)})
	must.NoError(t, err)
	made, err := node.ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	regionDir, err := node.ledger.PrepareRegion(t.Context(), made.ID, "c", 0)
	must.NoError(t, err)
	if n.regions == nil {
		n.regions = make(map[string]string)
	}
	n.regions[made.ID] = regionDir
	return made
}

// bound makes a claim on a slice and binds it to a container with this first process.
func (n *unmanagedNode) bound(t *testing.T, slice, pid int) *claim.Claim {
	t.Helper()
	made := n.reserved(t, slice)
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
	node.unmanaged.update(t.Context(), node.published.readHealth())
	node.published.publishHealth(node.inventory.list(), node.unmanaged.uncounted.lasting())
	report, err := health.Read(node.runDir)
	must.NoError(t, err)
	return report.Uncounted
}

// A claim whose container uses memory that it does not count is published, once that has lasted, and its limit is lowered by
// it. One without memory is not, nor one that uses memory for a moment.
func TestUncounted(t *testing.T) {
	n := newUnmanagedNode(t)
	past, idle := startSleep(t), startSleep(t)
	bypassed := n.bound(t, 0, past.Process.Pid)
	n.bound(t, 1, idle.Process.Pid)

	holders := []nvml.Process{holding(past.Process.Pid, 5<<10), {PID: idle.Process.Pid}, holding(startSleep(t).Process.Pid, 1<<10)}
	n.fake.SetProcesses(n.gpu.UUID, holders...)
	must.MapEmpty(t, n.look(t, 0))
	must.MapEmpty(t, n.look(t, uncountedSettles-time.Second))
	n.fake.SetProcesses(n.gpu.UUID)
	must.MapEmpty(t, n.look(t, time.Minute), must.Sprint("it was for a moment"))

	n.fake.SetProcesses(n.gpu.UUID, holders...)
	must.MapEmpty(t, n.look(t, 0))
	said := n.look(t, uncountedSettles)
	must.MapLen(t, 1, said)
	must.StrContains(t, said[bypassed.ID].Problem, fmt.Sprintf("process %d (5GiB)", past.Process.Pid))
	must.Eq(t, 5<<30, said[bypassed.ID].Bytes)
	must.Eq(t, 5<<30, n.uncounted(t, bypassed))

	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 6<<10))
	must.Eq(t, said, n.look(t, time.Hour), must.Sprint("more has to last, too"))
	said = n.look(t, uncountedSettles)
	must.Eq(t, 6<<30, said[bypassed.ID].Bytes)
	must.Eq(t, 6<<30, n.uncounted(t, bypassed))
	must.StrContains(t, said[bypassed.ID].Problem, "(5GiB)", must.Sprint("it is the same condition"))
	n.fake.SetError(errors.New("NVML does not answer"))
	must.Eq(t, said, n.look(t, time.Second), must.Sprint("NVML does not say"))
	n.fake.SetError(nil)

	dirs := map[string]any{"state_dir": n.node.Load().stateDir, "run_dir": n.node.Load().runDir}
	again := newPlugin(t, n.fake, dirs)
	restarted := &unmanagedNode{Plugin: again, gpu: n.gpu, fake: n.fake, clock: moveByHand(again)}
	must.NoError(t, again.node.Load().scanner.scan(t.Context()))
	must.Eq(t, said, restarted.look(t, 0), must.Sprint("the plugin was restarted"))
	n.fake.SetProcesses(n.gpu.UUID)
	must.Eq(t, said, restarted.look(t, 0))
	must.MapEmpty(t, restarted.look(t, uncountedSettles))
	must.Eq(t, 0, n.uncounted(t, bypassed), must.Sprint("it is all counted again"))
}

// It is published at once when it has lasted, and not with the next period only.
func TestUncounted_Recheck(t *testing.T) {
	n := newUnmanagedNode(t)
	past := startSleep(t)
	bypassed := n.bound(t, 0, past.Process.Pid)
	stream := fingerprint(t, n)
	next(t, stream)
	n.hold(holding(past.Process.Pid, 5<<10))
	settling := next(t, n.clock.set)
	must.Eq(t, uncountedSettles, settling.wait)
	n.clock.goOff(settling)
	published := func() bool {
		report, err := health.Read(n.node.Load().runDir)
		return err == nil && report.Uncounted[bypassed.ID].Problem != ""
	}
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(published), wait.Timeout(patience), wait.Gap(time.Millisecond)))
}

// The operator may have it shown only, or have tasks ended for it.
func TestUncounted_Observed(t *testing.T) {
	n := newUnmanagedNode(t)
	n.node.Load().unmanaged.uncounted.charges = false
	past := startSleep(t)
	c := n.bound(t, 0, past.Process.Pid)
	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 5<<10))
	n.look(t, 0)
	must.False(t, n.look(t, uncountedSettles)[c.ID].End)
	must.Eq(t, 0, n.uncounted(t, c))

	n.fake.SetProcesses(n.gpu.UUID)
	n.look(t, 0)
	must.MapEmpty(t, n.look(t, uncountedSettles))
	n.node.Load().unmanaged.uncounted.ends = true
	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 5<<10))
	n.look(t, 0)
	must.True(t, n.look(t, uncountedSettles)[c.ID].End)
}

// The next container of a claim is not taken for the one before.
func TestUncounted_NextContainer(t *testing.T) {
	n := newUnmanagedNode(t)
	past, next := startSleep(t), startSleep(t)
	c := n.bound(t, 0, past.Process.Pid)
	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 5<<10))
	n.look(t, 0)
	must.MapLen(t, 1, n.look(t, uncountedSettles))

	must.NoError(t, past.Process.Kill())
	_ = past.Wait()
	must.NoError(t, n.node.Load().ledger.Bind(t.Context(), c.ID, claim.Container{Runtime: "test", ID: "d", InitPID: next.Process.Pid}))
	n.fake.SetProcesses(n.gpu.UUID, holding(next.Process.Pid, 5<<10))
	must.MapEmpty(t, n.look(t, time.Minute))
	must.MapLen(t, 1, n.look(t, uncountedSettles))
}

// Of a container with two claims, the second is charged for what exceeds the first.
func TestUncounted_TwoClaims(t *testing.T) {
	n := newUnmanagedNode(t)
	past := startSleep(t)
	first, second := n.bound(t, 0, past.Process.Pid), n.bound(t, 1, past.Process.Pid)
	must.Eq(t, 1<<30, first.LimitBytes)
	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 5<<10))
	n.look(t, 0)
	must.MapLen(t, 2, n.look(t, uncountedSettles))
	must.Eq(t, 5<<30, n.uncounted(t, first)+n.uncounted(t, second))
	must.Eq(t, 1<<30, min(n.uncounted(t, first), n.uncounted(t, second)))

	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 512))
	n.look(t, 0)
	must.MapLen(t, 1, n.look(t, uncountedSettles))
	must.Eq(t, 512<<20, n.uncounted(t, first)+n.uncounted(t, second))
}

// A container with two claims is charged for what they have left, in the order of their IDs: its programs cannot exceed the sum of
// the limits, whichever claim counts their memory.
func TestUncounted_TwoClaimsHaveLeft(t *testing.T) {
	simtest.InProcess(t, testUncountedTwoClaimsHaveLeft)
}

func testUncountedTwoClaimsHaveLeft(t *testing.T) {
	const mib = 1 << 20
	n := newSimulatedNode(t)
	one := n.reserved(t, 0)
	two := n.reserved(t, 1)
	n.bind(t, one, os.Getpid())
	n.bind(t, two, os.Getpid())
	shadow := n.throughShadow(t, one, two)
	first, second := one, two
	if two.ID < one.ID {
		first, second = two, one
	}
	holdMemory(t, 600*mib, shadow...)
	inFirst, err := n.node.Load().ledger.UsageOf(first)
	must.NoError(t, err)
	must.Greater(t, 600*mib, inFirst.UsedBytes, must.Sprint("programs use the claims in another order"))
	for range 4 {
		holdMemory(t, 600*mib, shadow...)
	}
	past := 2000 * mib
	holdMemory(t, past)
	n.look(t, 0)
	said := n.look(t, uncountedSettles)
	must.Greater(t, past, int(said[first.ID].Bytes+said[second.ID].Bytes))
	var used uint64
	for _, c := range []*claim.Claim{first, second} {
		usage, err := n.node.Load().ledger.UsageOf(c)
		must.NoError(t, err)
		must.LessEq(t, c.LimitBytes, usage.UsedBytes+n.uncounted(t, c), must.Sprint(c.ID))
		used += usage.UsedBytes
	}
	must.Greater(t, 3000*mib, int(used))
	must.Greater(t, 0, int(said[first.ID].Bytes), must.Sprint("the first claim has something left"))
	must.Greater(t, 0, int(said[second.ID].Bytes))

	left := int(first.LimitBytes+second.LimitBytes-used) - past
	must.False(t, canHold(t, left, shadow...))
}

// After a change of the option, it also applies to what was published before.
func TestUncounted_OptionChanged(t *testing.T) {
	n := newUnmanagedNode(t)
	past := startSleep(t)
	c := n.bound(t, 0, past.Process.Pid)
	n.fake.SetProcesses(n.gpu.UUID, holding(past.Process.Pid, 5<<10))
	n.look(t, 0)
	must.False(t, n.look(t, uncountedSettles)[c.ID].End)
	for _, tc := range []struct {
		option  string
		charged uint64
		end     bool
	}{{"observe", 0, false}, {"end", 5 << 30, true}, {"charge", 5 << 30, false}} {
		options := map[string]any{"state_dir": n.node.Load().stateDir, "run_dir": n.node.Load().runDir, "uncounted_memory": tc.option}
		again := newPlugin(t, n.fake, options)
		n.Plugin, n.clock = again, moveByHand(again)
		must.NoError(t, again.node.Load().scanner.scan(t.Context()))
		must.Eq(t, tc.end, n.look(t, 0)[c.ID].End, must.Sprint(tc.option))
		must.Eq(t, tc.charged, n.uncounted(t, c), must.Sprint(tc.option))
	}
}

// uncounted is what a claim's region says that its container uses uncounted.
func (n *unmanagedNode) uncounted(t *testing.T, c *claim.Claim) uint64 {
	t.Helper()
	header, err := region.ReadHeader(n.regions[c.ID])
	must.NoError(t, err)
	return header.UncountedBytes
}

// newSimulatedNode returns a plugin for the simulated GPUs, of which it looks at the first.
func newSimulatedNode(t *testing.T) *unmanagedNode {
	t.Helper()
	node := simtest.H200x2(t)
	p := newPlugin(t, nvml.New(node.DriverRoot), map[string]any{"driver_root": node.DriverRoot, "slice_memory": "4GiB"})
	n := &unmanagedNode{Plugin: p, clock: moveByHand(p)}
	n.gpu.UUID = simtest.H200UUID0
	return n
}

// On the simulated GPU: in one container, a program that loads the driver itself beside one that loads the shadow library.
// What the first takes is missing to the second, until it ends.
func TestUncounted_Simulated(t *testing.T) { simtest.InProcess(t, testUncountedSimulated) }

func testUncountedSimulated(t *testing.T) {
	const mib = 1 << 20
	n := newSimulatedNode(t)

	reserved := n.reserved(t, 0)
	shadow := n.throughShadow(t, reserved)
	counting := holdMemory(t, 100*mib, shadow...)
	n.bind(t, reserved, os.Getpid())
	must.MapEmpty(t, n.look(t, 0))
	must.MapEmpty(t, n.look(t, uncountedSettles), must.Sprint("all is counted"))

	past := holdMemory(t, 300*mib)
	must.MapEmpty(t, n.look(t, 0))
	said := n.look(t, uncountedSettles)
	must.MapLen(t, 1, said)
	must.Between(t, 300*mib, said[reserved.ID].Bytes, 300*mib+reserved.GPU.ContextBytes+uncountedNoiseBytes)
	must.Eq(t, said[reserved.ID].Bytes, n.uncounted(t, reserved))

	left := int(reserved.LimitBytes - 100*mib - 2*reserved.GPU.ContextBytes)
	must.False(t, canHold(t, left-200*mib, shadow...), must.Sprint("the limit is not lowered"))
	must.True(t, canHold(t, left-int(said[reserved.ID].Bytes)-4*mib, shadow...))
	must.NoError(t, past.Process.Kill())
	_ = past.Wait()
	n.look(t, 0)
	must.MapEmpty(t, n.look(t, uncountedSettles))
	must.True(t, canHold(t, left-4*mib, shadow...), must.Sprint("the limit is still lowered"))
	must.NoError(t, counting.Process.Kill())
}

// On the simulated GPU: a program that loads the shadow library, for which the driver takes memory that no call asks for.
func TestUncounted_Driver(t *testing.T) { simtest.InProcess(t, testUncountedDriver) }

func testUncountedDriver(t *testing.T) {
	const mib = 1 << 20
	n := newSimulatedNode(t)
	topology, err := os.ReadFile("../e2e/simgpu/topologies/h200x2.conf")
	must.NoError(t, err)
	own := filepath.Join(t.TempDir(), "topology")
	must.NoError(t, os.WriteFile(own, append([]byte("own_launch_mib = 200\n"), topology...), 0o600))

	reserved := n.reserved(t, 0)
	program := append(n.throughShadow(t, reserved), "SIMGPU_TOPOLOGY="+own)
	n.bind(t, reserved, os.Getpid())
	holdMemory(t, 100*mib, program...)
	must.MapEmpty(t, n.look(t, 0))
	must.MapEmpty(t, n.look(t, uncountedSettles), must.Sprint("it has not launched anything"))

	launched := holdMemory(t, 100*mib, append(program, "HOLD_LAUNCHES=1")...)
	must.MapEmpty(t, n.look(t, 0))
	said := n.look(t, uncountedSettles)
	must.MapLen(t, 1, said)
	must.Between(t, 200*mib, said[reserved.ID].Bytes, 200*mib+uncountedNoiseBytes)
	must.Eq(t, said[reserved.ID].Bytes, n.uncounted(t, reserved))
	must.NoError(t, launched.Process.Kill())
	_ = launched.Wait()
	n.look(t, 0)
	must.MapEmpty(t, n.look(t, uncountedSettles))
}

// On the simulated GPU: a container's program that renders holds memory past the shadow library, which has no function of
// Vulkan's. NVML does not list it among those that compute.
func TestUncounted_Graphics(t *testing.T) { simtest.InProcess(t, testUncountedGraphics) }

func testUncountedGraphics(t *testing.T) {
	const mib = 1 << 20
	n := newSimulatedNode(t)
	reserved := n.reserved(t, 0)
	n.bind(t, reserved, os.Getpid())
	for _, renders := range []string{"only", "too"} {
		program := holdMemory(t, 700*mib, "SIMGPU_GRAPHICS="+renders)
		must.MapEmpty(t, n.look(t, 0))
		said := n.look(t, uncountedSettles)
		must.Between(t, 700*mib, said[reserved.ID].Bytes, 700*mib+reserved.GPU.ContextBytes+uncountedNoiseBytes, must.Sprint(renders))
		must.NoError(t, program.Process.Kill())
		_ = program.Wait()
		n.look(t, 0)
		must.MapEmpty(t, n.look(t, uncountedSettles))
	}
}

// canHold reports whether a program gets that much memory of the simulated GPU 0.
func canHold(t *testing.T, bytes int, env ...string) bool {
	t.Helper()
	cmd := exec.Command("../build/sim/test/nvml-hold", fmt.Sprint(bytes))
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = t.Output()
	held, _ := cmd.Output() // it ends at once: it has no input
	return string(held) == "holding\n"
}

// throughShadow is the environment by which a program outside a container loads the shadow library with claims.
func (n *unmanagedNode) throughShadow(t *testing.T, claims ...*claim.Claim) []string {
	t.Helper()
	lib, regions := t.TempDir(), t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(lib, ".tranche"), 0o700))
	for _, c := range claims {
		must.NoError(t, os.Symlink(n.regions[c.ID], filepath.Join(regions, c.ID)))
	}
	for link, target := range map[string]string{
		"libcuda.so.1": "../build/lib/libcuda.so.1", ".tranche/driver-libcuda.so": "../build/sim/lib/libcuda.so.1",
	} {
		path, err := filepath.Abs(target)
		must.NoError(t, err)
		must.NoError(t, os.Symlink(path, filepath.Join(lib, link)))
	}
	return []string{"LD_LIBRARY_PATH=" + lib, "TRANCHE_REGIONS=" + regions}
}
