package governor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/claim/region"
	"github.com/tranche-gpu/tranche/claim/rundir"
	"github.com/tranche-gpu/tranche/claim/runs"
	"github.com/tranche-gpu/tranche/governor/page"
	"github.com/tranche-gpu/tranche/governor/protocol"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/governor/turns"
	"github.com/tranche-gpu/tranche/internal/proc"
)

const (
	open    = 0
	metered = 1
	closed  = 2
)

// A claim that is alone computes freely. When another joins, they take turns, and the newcomer is not told before that holds.
func TestTurns(t *testing.T) {
	r := newRig(t)
	a := r.join(r.claim(300), 0)
	must.Eq(t, open, a.state())
	b := r.join(r.claim(700), 1)
	must.Eq(t, metered, a.state())
	must.Eq(t, closed, b.state())
	must.Eq(t, protocol.Grant, a.receive().Kind)

	b.send(protocol.Message{Kind: protocol.Want})
	revoke := a.receive()
	must.Eq(t, protocol.Revoke, revoke.Kind)
	must.Eq(t, closed, a.state())
	a.send(protocol.Message{Kind: protocol.Drained, Turn: revoke.Turn, Value: [5]uint64{uint64(monotonic())}})
	grant := b.receive()
	must.Eq(t, protocol.Grant, grant.Kind)
	must.Eq(t, metered, b.state())
	must.Greater(t, revoke.Turn, grant.Turn)
	must.Between(t, uint64(monotonic()-time.Minute), b.heartbeat(), uint64(monotonic()))

	b.close() // its process has ended: the other one is alone again
	a.await(open)
}

func TestTurns_IdlePassesOn(t *testing.T) {
	r := newRig(t)
	a, b := r.join(r.claim(500), 0), r.join(r.claim(500), 1)
	first := a.receive()
	a.send(protocol.Message{Kind: protocol.Idle, Turn: first.Turn, Value: [5]uint64{100_000}})
	revoke := a.receive() // after a while, since nobody else wants a turn
	must.Eq(t, protocol.Revoke, revoke.Kind)
	a.send(protocol.Message{Kind: protocol.Drained, Turn: revoke.Turn, Value: [5]uint64{uint64(monotonic())}})
	b.send(protocol.Message{Kind: protocol.Want})
	must.Eq(t, protocol.Grant, b.receive().Kind)
}

// A process that does not drain holds the others up until the deadline, and is named.
func TestTurns_Overrun(t *testing.T) {
	r := newRig(t)
	a, b := r.join(r.claim(500), 0), r.join(r.claim(500), 1)
	b.send(protocol.Message{Kind: protocol.Want})
	must.Eq(t, protocol.Grant, a.receive().Kind)
	must.Eq(t, protocol.Revoke, a.receive().Kind)
	must.Eq(t, protocol.Grant, b.receive().Kind)
	r.awaitStatus(func(s *status.Status) bool { return s.Claims[a.claim.ID].Overruns == 1 })
}

// A process that does not drain is asked whether it runs. If it does not answer, turns go on without it, and it has none before it
// has drained.
func TestTurns_GivenUp(t *testing.T) {
	r := newRig(t)
	c := r.claim(500)
	first, silent := r.join(c, 0), r.join(c, 1)
	b := r.join(r.claim(500), 2)
	b.send(protocol.Message{Kind: protocol.Want})
	must.Eq(t, protocol.Grant, silent.receive().Kind)
	revoke := silent.receive()
	must.Eq(t, protocol.Revoke, revoke.Kind)
	ask := silent.receive()
	must.Eq(t, protocol.Message{Version: protocol.Version, Kind: protocol.Revoke, GPU: 1, Turn: revoke.Turn, Flags: protocol.Asks}, ask)
	drained := protocol.Message{Kind: protocol.Drained, Turn: revoke.Turn, Value: [5]uint64{uint64(monotonic())}}
	first.send(drained)

	first.send(protocol.Message{Kind: protocol.Want})
	must.Eq(t, protocol.Grant, b.receive().Kind)
	must.Eq(t, protocol.Revoke, b.receive().Kind)
	b.send(protocol.Message{Kind: protocol.Drained, Turn: b.turn(), Value: [5]uint64{uint64(monotonic())}})
	first.await(metered)
	must.Eq(t, closed, silent.state())
	silent.send(drained)
	silent.await(metered)
	must.Eq(t, first.turn(), silent.turn())
}

// A process that joins at the end of its claim's turn gets word of that after its page: it ignores what comes before.
func TestJoin_IsWelcomedFirst(t *testing.T) {
	l, err := newLoop()
	must.NoError(t, err)
	defer l.close()
	n := newNode(l, Options{Logger: hclog.NewNullLogger()})
	m := &member{governed: governed{Claim: claim.Claim{
		ID: "a", GPU: claim.GPU{UUID: "GPU-1"}, Compute: &claim.Compute{Share: 500, Max: 1000, Class: claim.ClassNormal},
	}}}
	n.claims["a"] = m
	g := n.gpu("GPU-1")
	g.Join(monotonic(), "a", part(m.Compute), 1001)
	g.Join(monotonic(), "b", part(m.Compute), 1002)
	g.Want(monotonic(), "b")
	end, ok := g.Next()
	must.True(t, ok)
	time.Sleep(end - monotonic()) // the claim's turn has ended, and nobody has seen that

	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	must.NoError(t, err)
	c := &conn{node: n, fd: fds[0], of: m, pid: os.Getpid()}
	m.conns, n.conns[c] = []*conn{c}, true
	p := &program{t: t, fd: fds[1]}
	t.Cleanup(p.close)
	must.NoError(t, c.join(protocol.Message{Kind: protocol.Hello, GPU: 1}, []string{"GPU-1"}))
	defer n.drop(c, "")
	must.Eq(t, protocol.Welcome, p.receive().Kind)
	must.Eq(t, closed, p.state())
	must.Eq(t, protocol.Revoke, p.receive().Kind)
}

// A child that has inherited the socket does not keep a dead process in its turn.
func TestTurns_DeathIsSeenByTheProcess(t *testing.T) {
	r := newRig(t)
	process := joiner(t, r.claim(500))
	b := r.join(r.claim(500), 0)
	must.Eq(t, closed, b.state())
	must.NoError(t, process.Process.Kill())
	_, err := process.Process.Wait() // and leave the child its input
	must.NoError(t, err)
	b.await(open)
}

// A process that has joined on two GPUs keeps its turn on one while it waits for that on the other, and says then whether it is
// still idle.
func TestTurns_OfTwoGPUs(t *testing.T) {
	r := newRig(t)
	first, second := r.claimOn("GPU-1", 500), r.claimOn("GPU-2", 500)
	joiner(t, r.claimOn("GPU-1", 500))
	joiner(t, r.claimOn("GPU-2", 500))
	a, b := r.join(first, 0), r.join(second, 1)
	a.send(protocol.Message{Kind: protocol.Want})
	grant := a.receive()
	must.Eq(t, protocol.Grant, grant.Kind)
	b.send(protocol.Message{Kind: protocol.Want})
	a.send(protocol.Message{Kind: protocol.Idle, Turn: grant.Turn, Value: [5]uint64{100_000}})
	must.Eq(t, protocol.Grant, b.receive().Kind)
	again := a.receive()
	must.Eq(t, protocol.Grant, again.Kind)
	must.Greater(t, grant.Turn, again.Turn)
	must.Eq(t, metered, a.state())
	b.close() // the GPUs have nothing to do with each other any more
	a.send(protocol.Message{Kind: protocol.Idle, Turn: again.Turn, Value: [5]uint64{100_000}})
	must.Eq(t, protocol.Revoke, a.receive().Kind)
}

func TestJoin_Refused(t *testing.T) {
	r := newRig(t)
	c := r.claim(500)
	hello := protocol.Message{Kind: protocol.Hello, GPU: 1}
	for name, packet := range map[string][]byte{
		"short":         hello.Encode()[:60],
		"other version": append([]byte{9, 9}, hello.Encode()[2:]...),
		"other GPU":     append(hello.Encode(), uuid("GPU-other")...),
		"no greeting":   protocol.Message{Kind: protocol.Want}.Encode(),
		"wrong index":   append(protocol.Message{Kind: protocol.Hello, GPU: 1, Value: [5]uint64{0, 99}}.Encode(), uuid(c.GPU.UUID)...),
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, c)
			p.write(packet)
			must.Eq(t, protocol.Refused, p.receive().Kind)
			must.True(t, p.ended())
		})
	}
	t.Run("of another container", func(t *testing.T) {
		other := r.claim(100)
		must.NoError(t, r.ledger.Bind(t.Context(), other.ID, claim.Container{Runtime: "test", ID: "x", InitPID: sleeper(t)}))
		awaitTrue(t, "the process to be refused", func() bool { // once the governor has seen the container
			p := dial(t, other)
			defer p.close()
			p.write(append(hello.Encode(), uuid(other.GPU.UUID)...))
			return p.receive().Kind == protocol.Refused
		})
	})
	t.Run("twice", func(t *testing.T) {
		r.join(c, 3)
		p := dial(t, c)
		p.write(append(protocol.Message{Kind: protocol.Hello, GPU: 1, Value: [5]uint64{0, 3}}.Encode(), uuid(c.GPU.UUID)...))
		must.Eq(t, protocol.Refused, p.receive().Kind)
	})
	t.Run("one that can't use the GPU joins without a gate", func(t *testing.T) {
		p := dial(t, r.claim(100))
		p.write(protocol.Message{Kind: protocol.Hello}.Encode())
		m := p.receive()
		must.Eq(t, protocol.Welcome, m.Kind)
		must.Eq(t, 0, m.Flags)
	})
}

func TestFlood(t *testing.T) {
	t.Run("connections", func(t *testing.T) {
		c := newRig(t).claim(500)
		for range mostConns {
			dial(t, c)
		}
		must.True(t, dial(t, c).ended())
	})
	t.Run("messages", func(t *testing.T) {
		c, sent := conn{}, 0
		for sent < 10*mostMessages && c.count() == nil { // some may be of another second
			sent++
		}
		must.Between(t, mostMessages, sent, 10*mostMessages-1)
	})
}

// A process whose gate closes sees a governor that lives, or the gate would be open to it.
func TestWrite_TheHeartbeatIsFreshBeforeAGateCloses(t *testing.T) {
	pages, err := page.New()
	must.NoError(t, err)
	defer pages.Close()
	n := newNode(nil, Options{})
	c := &conn{node: n, of: &member{}, peer: &peer{page: pages}}
	seen, err := unix.Mmap(pages.FD(), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must.NoError(t, err)
	defer func() { _ = unix.Munmap(seen) }()
	p := &program{page: seen}
	var stale, ends atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		for !ends.Load() {
			turn, state, beat := p.turn(), p.state(), p.heartbeat()
			if state == closed && beat == 0 && p.state() == closed && p.turn() == turn {
				stale.Store(true)
			}
		}
	})
	for turn := range uint64(1000) {
		c.write(turns.Action{State: turns.Open, Turn: 2 * turn})
		pages.Beat(0)
		c.write(turns.Action{State: turns.Closed, Turn: 2*turn + 1})
		must.Positive(t, p.heartbeat())
	}
	ends.Store(true)
	reader.Wait()
	must.False(t, stale.Load())
}

// Changes in the ledger take effect while the claim's processes compute.
func TestSetCompute(t *testing.T) {
	r := newRig(t)
	a := r.join(r.claim(500), 0)
	must.Eq(t, open, a.state())
	to := claim.Compute{Share: 100, Max: 200, Class: claim.ClassHigh}
	_, err := r.ledger.ChangeCompute(t.Context(), a.claim.ID, func(claim.Compute) (claim.Compute, error) { return to, nil })
	must.NoError(t, err)
	must.Eq(t, protocol.Grant, a.receive().Kind) // it has a ceiling now, and this turn ends with it
	s := r.awaitStatus(func(s *status.Status) bool { return s.Claims[a.claim.ID].Compute == to })
	must.Eq(t, []status.Process{{PID: os.Getpid(), Name: nameOf(os.Getpid())}}, s.Claims[a.claim.ID].Joined)
	must.Eq(t, []string{a.claim.ID}, s.GPUs[a.claim.GPU.UUID].Joined)
}

// The end of the governor ends the connections, and the next one goes on with the debts.
func TestRestart(t *testing.T) {
	r := newRig(t)
	a, b := r.join(r.claim(500), 0), r.join(r.claim(500), 1)
	a.receive()
	b.send(protocol.Message{Kind: protocol.Want})
	must.Eq(t, protocol.Revoke, a.receive().Kind)
	must.Eq(t, protocol.Grant, b.receive().Kind) // after the deadline, so that a has a debt
	debts := func() (all map[string]map[string]float64) {
		// They are written after the status, so that there are none at first.
		_, err := rundir.Read(filepath.Join(r.options.RunDir, status.Dir), debtsFile, &all)
		must.NoError(t, err)
		return all
	}
	r.awaitStatus(func(*status.Status) bool {
		return debts()[a.claim.GPU.UUID][a.claim.ID] < -float64(20*time.Millisecond)
	})
	r.stop()
	must.True(t, a.ended())
	must.True(t, b.ended())
	must.False(t, exists(a.claim.path()))
	owed := debts()[a.claim.GPU.UUID][a.claim.ID]
	r.start()
	again := r.join(a.claim, 0)
	must.Eq(t, open, again.state())
	r.awaitStatus(func(s *status.Status) bool {
		return len(s.Claims[a.claim.ID].Joined) > 0 && debts()[a.claim.GPU.UUID][a.claim.ID] == owed
	})
}

func TestRun_OneOnANode(t *testing.T) {
	r := newRig(t)
	err := Run(t.Context(), r.options)
	must.ErrorIs(t, err, ErrRuns)
	must.ErrorContains(t, err, filepath.Join(r.options.RunDir, status.Dir, status.LockFile))
	must.ErrorContains(t, err, fmt.Sprintf("process %d (", os.Getpid()))
}

// A governor that may takes the place of another.
func TestRun_Displaces(t *testing.T) {
	r := newRig(t)
	displaced := make(chan struct{})
	o := r.options
	ctx, cancel := context.WithCancel(t.Context())
	o.Ready = cancel
	o.Displace = func(context.Context) error {
		r.stop()
		close(displaced)
		return nil
	}
	must.NoError(t, Run(ctx, o))
	<-displaced
	r.start()
}

// Nobody but root can lock what a governor locks, also where an earlier version has let everybody: it would never start.
func TestRun_LockIsPrivate(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.options.RunDir, status.Dir)
	lock := filepath.Join(dir, status.LockFile)
	isPrivate := func() {
		t.Helper()
		for path, mode := range map[string]os.FileMode{dir: 0o700, lock: 0o600} {
			info, err := os.Stat(path)
			must.NoError(t, err)
			must.Eq(t, mode, info.Mode().Perm(), must.Sprint(path))
		}
	}
	isPrivate()
	r.stop()
	must.NoError(t, os.Chmod(dir, 0o755))
	must.NoError(t, os.Chmod(lock, 0o644))
	r.start()
	isPrivate()
}

// A claim's directory is made anew when its container starts, and is then another file system.
func TestListen_InADirectoryThatIsMadeAnew(t *testing.T) {
	r := newRig(t)
	c := r.claim(500)
	r.join(c, 0).close()
	must.NoError(t, region.Remove(c.dir))
	must.NoError(t, os.Mkdir(c.dir, 0o755))
	r.join(c, 0)
	must.NoError(t, r.ledger.Drop(t.Context(), c.ID))
	awaitTrue(t, "the claim to be forgotten", func() bool { return !exists(c.path()) })
}

// `tranche run` has its claims in files of its own, which its program can damage: that is nobody else's concern.
func TestSource_Run(t *testing.T) {
	r := newRig(t)
	damaged := filepath.Join(r.options.RunDir, runs.Dir, "w", runs.Regions, "0badcafd")
	must.NoError(t, os.MkdirAll(damaged, 0o700))
	must.NoError(t, os.WriteFile(filepath.Join(damaged, runs.RecordFile), []byte("{"), 0o600))
	dir := filepath.Join(r.options.RunDir, runs.Dir, "x", runs.Regions, "0badcafe")
	must.NoError(t, os.MkdirAll(dir, 0o700))
	c := &member{governed: governed{dir: dir, Claim: claim.Claim{
		ID: "0badcafe", GPU: claim.GPU{UUID: "GPU-1"}, Compute: &claim.Compute{Share: 300, Max: 1000, Class: claim.ClassNormal},
		// A process that lives, and of which this one does not descend.
		Owner: claim.OwnerRun, Container: container(t, sleeper(t)),
	}}}
	must.NoError(t, runs.WriteRecord(dir, &c.Claim))
	a := r.join(c, 0)
	must.Eq(t, open, a.state())
	must.NoError(t, region.Remove(filepath.Join(r.options.RunDir, runs.Dir, "x")))
	must.True(t, a.ended())
}

func sleeper(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

func container(t *testing.T, pid int) *claim.Container {
	t.Helper()
	id, err := proc.Find(pid)
	must.NoError(t, err)
	return &claim.Container{InitPID: pid, InitStartTime: id.StartTime, BootID: id.BootID}
}

// Processes that use the GPU and have not joined are named; those of nobody's container are not.
func TestObserver(t *testing.T) {
	inside, outside := sleeper(t), sleeper(t)
	publications := 0
	o := &observer{changed: func() { publications++ }, options: Options{
		Logger: hclog.NewNullLogger(),
		Processes: func(_ context.Context, uuid string) ([]int, error) {
			if uuid != "GPU-1" {
				return nil, errors.New("no such GPU")
			}
			return []int{inside, outside, os.Getpid()}, nil
		},
	}}
	of := &claim.Claim{ID: "0badcafe", GPU: claim.GPU{UUID: "GPU-1"}, Container: container(t, inside)}
	other := &claim.Claim{ID: "0badcaff", GPU: claim.GPU{UUID: "GPU-2"}, Container: container(t, outside)}
	published := func() []status.Process {
		s := &status.Status{Claims: map[string]status.Claim{of.ID: {}}}
		o.name(s)
		return s.Claims[of.ID].NotJoined
	}
	o.know([]*claim.Claim{of, other}, map[user]bool{{"GPU-2", inside}: true})
	before := o.observe(t.Context(), nil)
	must.MapLen(t, 1, before)
	must.Eq(t, of.ID, before[user{"GPU-1", inside}].claim)
	must.SliceEmpty(t, published(), must.Sprint("it may be about to join"))
	o.observe(t.Context(), before)
	must.Eq(t, []status.Process{{PID: inside, Name: "sleep"}}, published())
	must.Eq(t, 1, publications)
	o.observe(t.Context(), before)
	must.Eq(t, 1, publications, must.Sprint("nothing is new"))
	o.know([]*claim.Claim{of, other}, map[user]bool{{"GPU-1", inside}: true})
	must.MapEmpty(t, o.observe(t.Context(), before))
	must.SliceEmpty(t, published())
	must.Eq(t, 2, publications)
}

// What follows is what the device plugin's configuration says, once the driver reports that the process computes; a task is ended
// only if that goes on for some time.
func TestObserver_Follows(t *testing.T) {
	inside := sleeper(t)
	of := &claim.Claim{ID: "0badcafe", GPU: claim.GPU{UUID: "GPU-1"}, Container: container(t, inside)}
	by := user{"GPU-1", inside}
	type observed struct {
		follows layout.Bypass
		charged map[string]float64
	}
	for name, tc := range map[string]struct {
		bypass layout.Bypass
		since  time.Duration
		busy   map[int]float64
		want   observed
	}{
		"nothing is said":      {busy: map[int]float64{inside: 0.5}},
		"observed":             {bypass: layout.BypassObserved, busy: map[int]float64{inside: 0.5}},
		"charged":              {bypass: layout.BypassCharged, busy: map[int]float64{inside: 0.5}, want: observed{layout.BypassCharged, map[string]float64{of.ID: 0.5}}},
		"not seen to compute":  {bypass: layout.BypassCharged, busy: map[int]float64{}, want: observed{"", map[string]float64{of.ID: 0}}},
		"unknown utilization":  {bypass: layout.BypassCharged, want: observed{"", map[string]float64{of.ID: 0}}},
		"ended":                {bypass: layout.BypassEnds, since: bypassEnds, busy: map[int]float64{inside: 0.5}, want: observed{follows: layout.BypassEnds}},
		"ended soon":           {bypass: layout.BypassEnds, since: bypassEnds / 2, busy: map[int]float64{inside: 0.5}},
		"idle for a long time": {bypass: layout.BypassEnds, since: time.Hour, busy: map[int]float64{inside + 1: 0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			var got observed
			o := &observer{changed: func() {}, charge: func(_ string, parts map[string]float64) { got.charged = parts }, options: Options{
				Logger: hclog.NewNullLogger(), RunDir: t.TempDir(),
				Processes:   func(context.Context, string) ([]int, error) { return []int{inside}, nil },
				Utilization: func(context.Context, string, time.Time) (map[int]float64, error) { return tc.busy, nil },
			}}
			must.NoError(t, layout.Write(o.options.RunDir, map[string]layout.GPU{"GPU-1": {Shares: true, Bypass: tc.bypass}}))
			o.know([]*claim.Claim{of}, nil)
			o.observe(t.Context(), sighting{by: {of.ID, time.Now().Add(-tc.since)}})
			s := &status.Status{Claims: map[string]status.Claim{of.ID: {}}}
			o.name(s)
			must.SliceLen(t, 1, s.Claims[of.ID].NotJoined)
			must.Eq(t, of.ContainerKey(), s.Claims[of.ID].NotJoinedIn)
			got.follows = s.Claims[of.ID].Bypass
			must.Eq(t, tc.want, got, must.Cmp(cmp.AllowUnexported(observed{})))
			o.observe(t.Context(), nil)
			s = &status.Status{Claims: map[string]status.Claim{of.ID: {}}}
			o.name(s)
			must.Eq(t, "", s.Claims[of.ID].Bypass, must.Sprint("it has just come"))
		})
	}
}

// Of two claims of a container on one GPU, programs compute in the turns of one: what others take outside of turns is that one's, at
// each look. Until one has joined it is the first one's.
func TestObserver_TwoClaimsOfAContainer(t *testing.T) {
	c := newCrowd(t)
	inside := sleeper(t)
	c.many.Container = container(t, inside)
	c.one = c.claim("0badcafd")
	c.one.Container = c.many.Container
	var charged []map[string]float64
	publications := 0
	o := &observer{
		changed: func() { publications++ },
		charge:  func(_ string, parts map[string]float64) { charged = append(charged, parts) },
		options: Options{
			Logger: hclog.NewNullLogger(), RunDir: t.TempDir(),
			Processes: func(context.Context, string) ([]int, error) { return []int{inside}, nil },
			Utilization: func(context.Context, string, time.Time) (map[int]float64, error) {
				return map[int]float64{inside: 0.5}, nil
			},
		},
	}
	bypass := func(b layout.Bypass) {
		must.NoError(t, layout.Write(o.options.RunDir, map[string]layout.GPU{"GPU-1": {Shares: true, Bypass: b}}))
	}
	bypass(layout.BypassCharged)
	var seen sighting
	observe := func(owner string) {
		t.Helper()
		s := c.snapshot(c.now)
		o.know(s.claims, s.joined)
		before := seen
		seen = o.observe(t.Context(), seen)
		must.Eq(t, owner, seen[user{"GPU-1", inside}].claim)
		if before != nil {
			o.name(&s.status)
			must.SliceLen(t, 1, s.status.Claims[owner].NotJoined)
			must.Eq(t, map[string]float64{owner: 0.5}, charged[len(charged)-1])
		}
	}
	for range 20 {
		observe(c.one.ID)
	}
	must.Eq(t, 1, publications)
	c.join(c.many, os.Getpid())
	since := seen[user{"GPU-1", inside}].since
	for range 20 {
		observe(c.many.ID)
	}
	must.Eq(t, 2, publications, must.Sprint("it is named for the other claim now"))
	must.True(t, since.Equal(seen[user{"GPU-1", inside}].since), must.Sprint("it is there for as long as before"))
}
