package governor

import (
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/turns"
	"github.com/tranche-gpu/tranche/internal/proc"
)

const (
	// beat is how often the heartbeat is set while a gate is not open.
	beat = 25 * time.Millisecond
	// publishes is how often the status is published while claims have joined, and checks how often the sockets are checked.
	publishes, checks = time.Second, time.Second
)

// node is the governed claims of this node and their processes. It belongs to the loop.
type node struct {
	loop    *loop
	options Options
	logger  hclog.Logger
	// gpus are by UUID.
	gpus   map[string]*turns.GPU
	claims map[string]*member
	peers  map[proc.ID]*peer
	// processes are the processes as the state machines know them.
	processes map[turns.Process]*conn
	last      turns.Process
	conns     map[*conn]bool
	// debts are those from before that are not restored yet, by GPU.
	debts map[string]map[string]float64
	// marks are since when the time that is taken outside of turns is not charged yet, by GPU.
	marks map[string]turns.Mark

	beatDue, publishDue, checkDue time.Duration
	published                     time.Duration // when the status was published last
	publish                       func(snapshot)
}

// governed is a governed claim, and the directory for its socket.
type governed struct {
	claim.Claim
	dir string
}

// member is a governed claim as the governor knows it.
type member struct {
	governed
	listener listener
	conns    []*conn
	// partners are the claims on other GPUs that processes of this claim have joined, with the number of these processes.
	partners map[*member]int
	// overran is when an overrun was logged last, and gaveUp when processes that do not answer were.
	overran, gaveUp time.Duration
	// complained is when something was logged last of its processes.
	complained time.Duration
}

// overrunsLogged is how often overruns of a claim are logged; the status counts them all.
const overrunsLogged = time.Minute

func newNode(l *loop, o Options) *node {
	return &node{
		loop: l, options: o, logger: o.Logger, gpus: make(map[string]*turns.GPU), claims: make(map[string]*member),
		peers: make(map[proc.ID]*peer), processes: make(map[turns.Process]*conn), conns: make(map[*conn]bool),
		marks: make(map[string]turns.Mark),
	}
}

// gpu returns the turns of a GPU.
func (n *node) gpu(uuid string) *turns.GPU {
	g := n.gpus[uuid]
	if g == nil {
		g = turns.New()
		debts := maps.Clone(n.debts[uuid])
		maps.DeleteFunc(debts, func(id string, _ float64) bool { return n.claims[id] == nil }) // it ended meanwhile
		g.Restore(debts)
		n.gpus[uuid] = g
	}
	return g
}

// part is a claim's part as package turns has it.
func part(c *claim.Compute) turns.Part {
	classes := map[claim.Class]turns.Class{
		claim.ClassHigh: turns.High, claim.ClassNormal: turns.Normal, claim.ClassBestEffort: turns.BestEffort,
	}
	return turns.Part{Share: c.Share, Max: c.Max, Class: classes[c.Class]}
}

// update takes over the governed claims of the node.
func (n *node) update(claims []governed) {
	now := monotonic()
	seen := make(map[string]bool, len(claims))
	for _, c := range claims {
		seen[c.ID] = true
		m := n.claims[c.ID]
		if m == nil {
			m = &member{}
			n.claims[c.ID] = m
		}
		changed := m.Compute != nil && *m.Compute != *c.Compute
		m.governed = c
		if changed {
			n.gpu(c.GPU.UUID).Set(now, c.ID, part(c.Compute))
			n.apply()
			n.logger.Info("share changed", "claim", c.ID, "share", c.Compute.Share, "max", c.Compute.Max, "priority", string(c.Compute.Class))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(n.claims)) {
		if !seen[id] {
			n.forget(n.claims[id])
		}
	}
	n.checkListeners()
	n.publishDue = min(n.publishDue, now+publishes/4)
}

// forget drops a claim that is gone, and its processes' connections.
func (n *node) forget(m *member) {
	for _, c := range slices.Clone(m.conns) {
		n.drop(c, "its claim is gone")
	}
	n.closeListener(m)
	delete(n.claims, m.ID)
	if g := n.gpus[m.GPU.UUID]; g != nil {
		g.Forget(monotonic(), m.ID)
		n.apply()
	}
}

// chargeOutside charges claims for what their processes took of a GPU outside of turns since the last call.
func (n *node) chargeOutside(uuid string, parts map[string]float64) {
	n.marks[uuid] = n.gpu(uuid).ChargeOutside(monotonic(), n.marks[uuid], parts)
	n.apply()
}

// tick does what is due, and returns when it is to be called next; 0 for never.
func (n *node) tick(now time.Duration) time.Duration {
	for _, g := range n.gpus {
		if at, ok := g.Next(); ok && at <= now {
			g.Tick(now)
			n.apply()
		}
	}
	if n.closed() && now >= n.beatDue {
		n.beatAll(now)
		n.beatDue = now + beat
	}
	if len(n.claims) > 0 && now >= n.checkDue {
		n.checkListeners()
		n.checkDue = now + checks
	}
	if now >= n.publishDue {
		n.publish(n.snapshot(now))
		n.published, n.publishDue = now, now+publishes
		if len(n.conns) == 0 {
			n.publishDue = now + 4*publishes
		}
	}
	return n.next()
}

// next returns when something is due.
func (n *node) next() time.Duration {
	next := n.publishDue
	if len(n.claims) > 0 {
		next = min(next, n.checkDue)
	}
	if n.closed() {
		next = min(next, n.beatDue)
	}
	for _, g := range n.gpus {
		if at, ok := g.Next(); ok {
			next = min(next, at)
		}
	}
	return max(next, 1)
}

// closed reports whether a process has a gate that is not open.
func (n *node) closed() bool {
	for _, p := range n.peers {
		if p.closed() {
			return true
		}
	}
	return false
}

// beatAll sets the heartbeat of all pages.
func (n *node) beatAll(now time.Duration) {
	for _, p := range n.peers {
		p.page.Beat(uint64(now))
	}
}

// leave ends all connections, so that all gates open, and removes the sockets.
func (n *node) leave() {
	for c := range n.conns {
		n.loop.remove(c.fd)
	}
	for _, m := range n.claims {
		n.closeListener(m)
	}
	for _, p := range n.peers {
		n.loop.remove(p.pidfd)
		p.page.Close()
	}
}
