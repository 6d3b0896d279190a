package shares

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// tolerance is in points. The benchmark measures how exact shares are, on a quiet machine; here others compile and test on the
// same two processors, and threads that are to submit work or answer the governor get one late.
const tolerance = 10

// newNode starts a node. What a test starts ends with its context, long before the test's own deadline.
func newNode(t *testing.T) (context.Context, *Node) {
	t.Helper()
	needs.Sandbox(t, "to run programs on simulated GPUs")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute+chaosTime())
	t.Cleanup(cancel)
	n, err := Start(ctx, os.Getenv("TRANCHE_BUILD"), t.TempDir(), "../simgpu/topologies/h200x2.conf")
	must.NoError(t, err)
	t.Cleanup(func() {
		_ = n.Close()
		if log, err := os.ReadFile(n.LogFile()); err == nil && t.Failed() {
			t.Logf("the governor's log:\n%s", log)
		}
	})
	return ctx, n
}

// start starts a load that ends with the test.
func (n *Node) start(ctx context.Context, t *testing.T, name string, claim Claim, args ...string) *Load {
	t.Helper()
	l, err := n.Start(ctx, name, claim, args...)
	must.NoError(t, err)
	t.Cleanup(func() { _ = l.Kill() })
	return l
}

// watch watches the GPU for some rounds of turns.
func (n *Node) watch(ctx context.Context, t *testing.T) Window {
	t.Helper()
	w, err := n.Watch(ctx, 3*time.Second)
	must.NoError(t, err)
	t.Log(w)
	return w
}

// until watches until it was so for some rounds: joining takes a moment, and a load or a governor that has no processor for long
// does not take part.
func (n *Node) until(ctx context.Context, t *testing.T, so func(Window) bool) {
	t.Helper()
	for !so(n.watch(ctx, t)) {
	}
}

// comesTo waits until the loads have had these shares.
func (n *Node) comesTo(ctx context.Context, t *testing.T, shares map[string]float64) {
	t.Helper()
	n.until(ctx, t, func(w Window) bool { return w.Error(shares) <= tolerance })
}

// A synchronous program has little of a GPU beside one that always has much queued, and its share of it under a governor.
func TestShares_HoldBesideAFullQueue(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	light, heavy := []string{"--kernel", "200", "--depth", "1"}, []string{"--kernel", "2000", "--depth", "256"}
	a := n.start(ctx, t, "light", Claim{}, light...)
	b := n.start(ctx, t, "heavy", Claim{}, heavy...)
	n.until(ctx, t, func(w Window) bool { return w.Part("light") < 30 }) // the GPU does not divide its time by itself
	must.NoError(t, a.Kill())
	must.NoError(t, b.Kill())

	n.start(ctx, t, "light", Share(70), light...)
	n.start(ctx, t, "heavy", Share(30), heavy...)
	n.comesTo(ctx, t, map[string]float64{"light": 70, "heavy": 30})
}

// A ceiling holds on a GPU that nobody else wants, and when it is gone, the claim has all of it.
func TestShares_CeilingAndItsChange(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	n.start(ctx, t, "a", Share(30).Max(40), "--kernel", "1000")
	n.until(ctx, t, func(w Window) bool { return w.Used() > 10 && w.Used() <= 40+tolerance })

	dirs, err := filepath.Glob(filepath.Join(n.runDir(), "run/*/regions/*"))
	must.NoError(t, err)
	must.Len(t, 1, dirs)
	out, err := n.tranche(ctx, "claim", "set", filepath.Base(dirs[0]), "--max", "100")
	must.NoError(t, err)
	must.StrContains(t, out, "has share 30% of GPU 0")
	n.until(ctx, t, func(w Window) bool { return w.Used() > 40+tolerance })
}

// The death of the governor opens all gates, and the next one takes over.
func TestShares_GovernorKilled(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	want := map[string]float64{"a": 20, "b": 80}
	loads := []*Load{
		n.start(ctx, t, "a", Share(20), "--kernel", "1000"),
		n.start(ctx, t, "b", Share(80), "--kernel", "1000"),
	}
	n.comesTo(ctx, t, want)
	must.NoError(t, n.KillGovernor())
	n.until(ctx, t, func(w Window) bool { return w.Part("a") >= 35 && w.Part("a") <= 65 }) // the GPU takes turns by itself
	must.NoError(t, n.StartGovernor(ctx))
	n.comesTo(ctx, t, want)
	for _, l := range loads {
		_, err := l.Stop()
		must.NoError(t, err)
	}
}

// A claim that is killed or stopped in the midst of its turn holds nobody up, and who goes on has its time.
func TestShares_KilledAndStopped(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	stopped := n.start(ctx, t, "stopped", Share(40), "--kernel", "1000")
	killed := n.start(ctx, t, "killed", Share(40), "--kernel", "1000")
	n.start(ctx, t, "last", Share(20), "--kernel", "1000")
	n.watch(ctx, t)
	must.NoError(t, stopped.Signal(syscall.SIGSTOP))
	must.NoError(t, killed.Signal(syscall.SIGKILL))
	n.until(ctx, t, func(w Window) bool { return w.Part("last") > 90 && w.Used() > 30 }) // a fifth is its share
	must.NoError(t, stopped.Signal(syscall.SIGCONT))
	n.comesTo(ctx, t, map[string]float64{"stopped": 40, "last": 20})
}

// A claim whose processes come and go at any moment of its turns has its share.
func TestShares_ProcessesComeAndGo(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	long := []string{"--kernel", "200000", "--depth", "1"}
	n.start(ctx, t, "crowd", n.WithOthers(Share(50), append(long, "--count", "2")...), long...)
	n.start(ctx, t, "alone", Share(50), "--kernel", "1000")
	starves := 0
	for range 5 {
		if w := n.watch(ctx, t); w.Part("crowd") < 15 {
			starves++
		}
	}
	must.Less(t, 3, starves) // in one or two, others may have had the processors
	n.comesTo(ctx, t, map[string]float64{"crowd": 50, "alone": 50})
}

// Who stops its programs while they have work on the GPU, and lets them go on to launch more, has no more than its share.
func TestShares_StoppedAgainAndAgain(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	stops := n.start(ctx, t, "stops", Share(10), "--kernel", "100000")
	n.start(ctx, t, "beside", Share(90), "--kernel", "1000")
	again := func() error {
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
			for _, step := range []struct {
				signal syscall.Signal
				last   time.Duration
			}{{syscall.SIGSTOP, 250 * time.Millisecond}, {syscall.SIGCONT, 30 * time.Millisecond}} {
				if err := stops.Signal(step.signal); err != nil {
					return err
				}
				time.Sleep(step.last) // what the GPU does meanwhile is what is judged
			}
		}
		return nil
	}
	for {
		w, err := n.Over(ctx, again)
		must.NoError(t, err)
		t.Log(w)
		if w.Part("stops") <= 10+tolerance && w.Busy["beside"] >= w.Length*(90-2*tolerance)/100 {
			return
		}
	}
}

// Programs of governed claims that bypass the governed library are named, also where nobody has joined, and no longer once they
// have ended; who has joined is not.
func TestShares_BypassIsNamed(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	driver := n.start(ctx, t, "driver", n.Bypassing(Share(50)), "--kernel", "1000")
	must.NoError(t, n.AwaitNamed(ctx, driver))

	joined := n.start(ctx, t, "joined", Share(30), "--kernel", "1000")
	claim, err := n.BypassingUngoverned(Share(20))
	must.NoError(t, err)
	ungoverned := n.start(ctx, t, "ungoverned", claim, "--kernel", "1000")
	must.NoError(t, n.AwaitNamed(ctx, ungoverned))
	named, err := n.named(ctx)
	must.NoError(t, err)
	pids, err := joined.pids()
	must.NoError(t, err)
	must.SliceLen(t, 2, named)
	must.SliceNotContains(t, named, pids[0])
	n.until(ctx, t, func(w Window) bool { return w.Part("driver") > 0 && w.Part("joined") > 0 && w.Part("ungoverned") > 0 })

	for _, l := range []*Load{driver, joined, ungoverned} {
		must.NoError(t, l.Kill())
	}
	must.NoError(t, n.await(ctx, "nobody to be named", func() (bool, error) {
		named, err := n.named(ctx)
		return len(named) == 0, err
	}))

	for _, order := range []string{"unload", "load"} { // the governor's session with the driver is broken then
		_, err := n.sim.Run(ctx, "fault", "driver", order)
		must.NoError(t, err)
	}
	must.NoError(t, n.AwaitNamed(ctx, n.start(ctx, t, "again", n.Bypassing(Share(50)), "--kernel", "1000")))
}

// What bypasses takes half of the GPU; charged for it, its claim has its share and no more.
func TestShares_BypassIsCharged(t *testing.T) {
	t.Parallel()
	ctx, n := newNode(t)
	n.start(ctx, t, "a", n.WithBypassing("outside", Share(60)), "--kernel", "1000")
	n.start(ctx, t, "b", Share(40), "--kernel", "1000")
	n.until(ctx, t, func(w Window) bool { return w.Part("a") > 10 && w.Part("b") > 10 && w.Part("b") < 30 })

	uuid, err := n.uuid(ctx)
	must.NoError(t, err)
	must.NoError(t, layout.Write(n.runDir(), map[string]layout.GPU{uuid: {Shares: true, Bypass: layout.BypassCharged}}))
	n.until(ctx, t, func(w Window) bool { return w.Part("b") > 40-tolerance/2 && w.Part("a") > 2 && w.Part("outside") > 30 })
}

// uuid is the first GPU's.
func (n *Node) uuid(ctx context.Context) (string, error) {
	record, err := n.sim.Record(ctx)
	if err != nil {
		return "", err
	}
	return record.GPUs[0].UUID, nil
}

// tranche runs a command of ours on the node, and returns what it prints.
func (n *Node) tranche(ctx context.Context, args ...string) (string, error) {
	out, err := n.command(ctx, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("tranche %q: %w: %s", args, err, out)
	}
	return string(out), err
}
