package device

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/device/share"
)

// unmanagedNode is a plugin with one GPU, on which others than claims have memory.
type unmanagedNode struct {
	*Plugin
	gpu   nvml.GPU
	fake  *nvmltest.Fake
	clock *handClock
	// regions are the directories of the claims' regions, by ID.
	regions map[string]string
}

func newUnmanagedNode(t *testing.T) *unmanagedNode {
	t.Helper()
	n := &unmanagedNode{gpu: nvmltest.H200(0)}
	n.fake = nvmltest.New(n.gpu)
	n.Plugin = newPlugin(t, n.fake, neverByItself)
	n.clock = moveByHand(n.Plugin)
	return n
}

// hold has processes hold memory of the GPU, and has the plugin look.
func (n *unmanagedNode) hold(processes ...nvml.Process) {
	n.fake.SetProcesses(n.gpu.UUID, processes...)
	n.node.Load().wake()
}

func holding(pid int, mebibytes uint64) nvml.Process {
	return nvml.Process{PID: pid, UsedBytes: mebibytes << 20, UsedKnown: true}
}

// As many free slices are unhealthy as an unmanaged process leaves no memory for, once it has used it for a while.
func TestUnmanaged(t *testing.T) {
	n := newUnmanagedNode(t)
	program := startSleep(t)
	stream := fingerprint(t, n)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))

	n.hold(holding(program.Process.Pid, 5<<10)) // of 140 slices and 411MiB
	settling := next(t, n.clock.set)
	must.Eq(t, unmanagedSettles, settling.wait)
	n.clock.goOff(settling)
	waiting := next(t, n.clock.set)
	must.Eq(t, publishInterval-unmanagedSettles, waiting.wait, must.Sprint("it is published at the limited rate"))
	n.clock.goOff(waiting)
	response := next(t, stream)
	reason := fmt.Sprintf("5GiB of GPU memory used outside claims: process %d (5GiB)", program.Process.Pid)
	want := map[string]string{}
	for _, id := range sliceIDs(n.gpu, 135, 136, 137, 138, 139) {
		want[id] = reason
	}
	must.Eq(t, want, unhealthy(response.Devices[0]))
	healthy, _ := response.Devices[0].Attributes["healthy_slices"].GetInt()
	must.Eq(t, 135, healthy)

	n.hold(holding(program.Process.Pid, 5<<10+200)) // it does not matter for the slices
	quiet(t, stream)
	must.SliceEmpty(t, drained(n.clock.set))
	n.clock.later.Add(int64(time.Hour))
	n.hold()
	n.clock.goOff(next(t, n.clock.set))
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
}

// What the server of an MPS control daemon holds, the claims of its clients answer for.
func TestUnmanaged_MPSServer(t *testing.T) {
	g := nvmltest.H200(0)
	g.UsedBytes = 5 << 30
	n := &unmanagedNode{gpu: g, fake: nvmltest.New(g)}
	k := newFakeManager(g.UUID)
	n.Plugin = newMPSPlugin(t, n.fake, k, neverByItself)
	n.clock = moveByHand(n.Plugin)
	server, program := startSleep(t), startSleep(t)
	k.set(func() { k.servers = []int{server.Process.Pid} })
	n.fake.SetProcesses(g.UUID, holding(server.Process.Pid, 5<<10))
	stream := fingerprint(t, n)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))
	must.SliceEmpty(t, drained(n.clock.set), must.Sprint("nothing has to settle"))

	n.hold(holding(server.Process.Pid, 5<<10), holding(program.Process.Pid, 5<<10))
	must.Eq(t, unmanagedSettles, next(t, n.clock.set).wait)
}

// What lasts for a moment only is not published.
func TestUnmanaged_Briefly(t *testing.T) {
	n := newUnmanagedNode(t)
	program := startSleep(t)
	stream := fingerprint(t, n)
	next(t, stream)
	n.hold(holding(program.Process.Pid, 50<<10))
	settling := next(t, n.clock.set)
	quiet(t, stream) // it may have looked at once and be looking again
	n.fake.SetProcesses(n.gpu.UUID)
	n.clock.later.Add(int64(time.Hour))
	n.clock.goOff(settling)
	quiet(t, stream)
	must.SliceEmpty(t, drained(n.clock.set))
}

// Slices of living claims stay as they are: of a full GPU only what is free is unhealthy.
func TestUnmanaged_NeverOfClaims(t *testing.T) {
	n := newUnmanagedNode(t)
	var most []int
	for number := 2; number < 140; number++ {
		most = append(most, number)
	}
	_, err := n.Reserve(sliceIDs(n.gpu, most...))
	must.NoError(t, err)
	stream := fingerprint(t, n)
	next(t, stream)
	n.hold(holding(startSleep(t).Process.Pid, 20<<10))
	n.clock.goOff(next(t, n.clock.set))
	n.clock.goOff(next(t, n.clock.set))
	reasons := unhealthy(next(t, stream).Devices[0])
	must.MapLen(t, 2, reasons)
	must.MapContainsKeys(t, reasons, sliceIDs(n.gpu, 0, 1))
	_, err = n.Reserve(sliceIDs(n.gpu, 0))
	must.NoError(t, err, must.Sprint("Nomad may have chosen it before"))
	must.MapContainsKeys(t, unhealthy(next(t, stream).Devices[0]), sliceIDs(n.gpu, 1))
}

// Who holds memory that no claim answers for.
func TestUnmanaged_Memory(t *testing.T) {
	container, other, ended := startSleep(t), startSleep(t), startSleep(t)
	must.NoError(t, ended.Process.Kill())
	_ = ended.Wait()
	unknown := func(pid int) nvml.Process { return nvml.Process{PID: pid} }
	for name, tc := range map[string]struct {
		used, reserved uint64 // MiB
		processes      []nvml.Process
		want           uint64 // MiB
	}{
		"nobody":                     {0, 0, nil, 0},
		"the claim's own process":    {9000, 0, []nvml.Process{holding(container.Process.Pid, 9000)}, 0},
		"another process":            {5000, 0, []nvml.Process{holding(other.Process.Pid, 5000)}, 5000},
		"both":                       {9000, 0, []nvml.Process{holding(container.Process.Pid, 4000), holding(other.Process.Pid, 5000)}, 5000},
		"one that has ended":         {0, 0, []nvml.Process{holding(ended.Process.Pid, 5000)}, 0},
		"ours":                       {500, 0, []nvml.Process{holding(os.Getpid(), 500)}, 0},
		"not known how much":         {20000, 1000, []nvml.Process{unknown(container.Process.Pid), unknown(other.Process.Pid)}, 8760},
		"the driver's":               {1000, 1000, nil, 0},
		"a little that nobody names": {1200, 1000, nil, 0},
		"the claim's limit":          {10240, 0, []nvml.Process{unknown(container.Process.Pid)}, 0},
		"nobody names it":            {20000, 1000, nil, 8760},
		"some of it is known":        {20000, 1000, []nvml.Process{holding(other.Process.Pid, 3000)}, 8760},
	} {
		t.Run(name, func(t *testing.T) {
			n := newUnmanagedNode(t)
			must.NoError(t, n.node.Load().scanner.scan(t.Context()))
			_, err := n.Reserve(sliceIDs(n.gpu, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
			must.NoError(t, err)
			ledger := n.node.Load().ledger
			must.NoError(t, ledger.Bind(t.Context(), claimsOf(t, n.Plugin)[0].ID,
				claim.Container{Runtime: "test", ID: "c", InitPID: container.Process.Pid}))
			n.fake.SetProcesses(n.gpu.UUID, tc.processes...)
			g := share.GPU{GPU: n.gpu}
			if tc.used > 0 {
				g.UsedBytes, g.ReservedBytes = tc.used<<20, tc.reserved<<20
			}
			must.Eq(t, tc.want<<20, n.node.Load().unmanaged.on(t.Context(), &g, claimsOf(t, n.Plugin)).bytes)
		})
	}
}

// The least change that lasts is what counts.
func TestUnmanaged_Observe(t *testing.T) {
	w, start := &settled[int]{}, time.Now()
	for i, step := range []struct {
		seconds, count, want int
	}{
		{0, 8, 0}, {5, 3, 0}, {9, 9, 0}, {10, 9, 3}, // at least 3 all the while
		{11, 9, 3}, {12, 3, 3}, {22, 9, 3}, {32, 9, 9}, // a change that went back begins again
		{33, 0, 9}, {40, 4, 9}, {43, 1, 4}, {60, 1, 4}, {70, 1, 1},
	} {
		w.observe(step.count, start.Add(time.Duration(step.seconds)*time.Second), unmanagedSettles)
		must.Eq(t, step.want, w.value, must.Sprintf("step %d", i))
	}
}

func TestUnmanaged_Text(t *testing.T) {
	o := unmanagedMemory{bytes: 7 << 30, processes: []nvml.Process{holding(1, 100), {PID: 2}, {PID: 3}, {PID: 4}, {PID: 5}, {PID: 6}, {PID: 7}}}
	must.Eq(t, "7GiB of GPU memory used outside claims: process 1 (100MiB), process 2, process 3, process 4, process 5, and 2 more",
		o.String())
}

// A program that somebody started by hand, on the simulated GPU: the simulator's record says what it took.
func TestUnmanaged_Simulated(t *testing.T) { simtest.InProcess(t, testStrangersSimulated) }

func testStrangersSimulated(t *testing.T) {
	node := simtest.H200x2(t)
	p := newPlugin(t, nvml.New(node.DriverRoot), map[string]any{"driver_root": node.DriverRoot, "context_memory": "auto", "packing_hint": true})
	clock := moveByHand(p)
	stream := fingerprint(t, p)
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]))

	reservation, err := p.Reserve([]string{simtest.H200UUID0 + "/slice-139", simtest.H200UUID0 + "/slice-138"})
	must.NoError(t, err)
	made, err := p.node.Load().ledger.Lookup(t.Context(), tokenOf(t, reservation.Envs))
	must.NoError(t, err)
	member := holdMemory(t, 1<<30)
	must.NoError(t, p.node.Load().ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "test", ID: "c", InitPID: member.Process.Pid}))
	clock.later.Add(int64(time.Hour))
	must.MapEmpty(t, unhealthy(next(t, stream).Devices[0]), must.Sprint("the hint of what was reserved"))
	ofClaims := node.UsedBytes(t, simtest.H200UUID0)

	holdMemory(t, 5<<30)
	outside := node.UsedBytes(t, simtest.H200UUID0) - ofClaims
	must.GreaterEq(t, 5<<30, outside)
	left := int((simtest.MemoryBytes - outside) >> 30)
	var reasons map[string]string
	for len(reasons) != 140-left { // the plugin looks every 100 ms, and may have seen the program before it had all
		select {
		case response := <-stream:
			reasons = unhealthy(response.Devices[0])
		case timer := <-clock.set: // of the hint, or of what has to last
			clock.goOff(timer)
		case <-time.After(patience):
			t.Fatal("no message came")
		}
	}
	for id := range reasons {
		must.SliceNotContains(t, made.Slices, id)
	}
}

// On the simulated GPU: a program that renders, beside a claim that uses less than its limit. Its memory is not free, though no
// more is used than limits account for.
func TestUnmanaged_Graphics(t *testing.T) { simtest.InProcess(t, testUnmanagedGraphics) }

func testUnmanagedGraphics(t *testing.T) {
	n := newSimulatedNode(t)
	n.bound(t, 0, startSleep(t).Process.Pid)
	display := holdMemory(t, 3<<30, "SIMGPU_GRAPHICS=only")
	must.NoError(t, n.node.Load().scanner.scan(t.Context()))
	n.look(t, 0)
	n.look(t, unmanagedSettles)
	blocked := n.node.Load().unmanaged.blocked[n.gpu.UUID]
	must.Eq(t, 1, blocked.count.value)
	must.StrContains(t, blocked.reason, fmt.Sprintf("used outside claims: process %d (3372MiB)", display.Process.Pid))
}

// holdMemory starts a program that takes memory of the simulated GPU 0, and returns when it has it. Without more in its
// environment it loads the driver itself.
func holdMemory(t *testing.T, bytes int, env ...string) *exec.Cmd {
	t.Helper()
	sim, err := filepath.Abs("../build/sim")
	must.NoError(t, err)
	cmd := exec.Command(filepath.Join(sim, "test/nvml-hold"), fmt.Sprint(bytes))
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(sim, "lib")), env...)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	_, err = io.ReadFull(stdout, make([]byte, len("holding\n")))
	must.NoError(t, err)
	return cmd
}
