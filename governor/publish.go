package governor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/rundir"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/governor/turns"
)

// debtsFile has the debts of claims, in the governor's directory, so that the next governor continues with them.
const debtsFile = "debts.json"

// snapshot is what is published.
type snapshot struct {
	status status.Status
	// debts are by GPU and claim, in nanoseconds.
	debts map[string]map[string]float64
	// claims are the governed ones, and joined the processes that have joined one. Those that have processes come first, and then
	// they are ordered by ID: of a container's claims on a GPU, the one in whose turns its programs compute is before the others.
	claims []*claim.Claim
	joined map[user]bool
}

// publishSoon has the status published after a process has joined or left: not once for each of a thousand.
func (n *node) publishSoon() { n.publishDue = min(n.publishDue, n.published+publishes/4) }

// snapshot returns what there is to publish.
func (n *node) snapshot(now time.Duration) snapshot {
	s := snapshot{
		status: status.Status{GPUs: map[string]status.GPU{}, Claims: map[string]status.Claim{}},
		debts:  maps.Clone(n.debts),
		joined: make(map[user]bool),
	}
	if s.debts == nil {
		s.debts = make(map[string]map[string]float64)
	}
	for uuid, g := range n.gpus {
		s.status.GPUs[uuid] = status.GPU{SwitchNS: uint64(g.Switch()), Joined: []string{}}
		s.debts[uuid] = g.Debts(now)
	}
	for _, id := range slices.Sorted(maps.Keys(n.claims)) {
		m := n.claims[id]
		uuid := m.GPU.UUID
		g := n.gpu(uuid)
		c := status.Claim{GPUUUID: uuid, Compute: *m.Compute, Joined: []status.Process{}}
		if had, ok := g.Status(now, id); ok {
			c.GPUSeconds, c.RecentPart = had.Had.Round(time.Microsecond).Seconds(), math.Round(had.Recent*1e4)/1e4
			c.WaitingSeconds, c.Overruns = had.Waited.Round(time.Microsecond).Seconds(), had.Overruns
			c.Alone = had.State == turns.Open && had.Processes > 0
		}
		for _, o := range m.conns {
			if o.process != 0 {
				s.joined[user{uuid, o.pid}] = true
				c.Joined = append(c.Joined, status.Process{PID: o.pid, Name: o.peer.name})
			}
		}
		if len(c.Joined) > 0 {
			gpu := s.status.GPUs[uuid]
			gpu.Joined = append(gpu.Joined, id)
			s.status.GPUs[uuid] = gpu
		}
		s.status.Claims[id] = c
		copied := m.Claim
		s.claims = append(s.claims, &copied)
	}
	slices.SortStableFunc(s.claims, func(a, b *claim.Claim) int {
		return cmp.Compare(min(len(s.status.Claims[b.ID].Joined), 1), min(len(s.status.Claims[a.ID].Joined), 1))
	})
	return s
}

// restore reads the debts that an earlier governor has left.
func (n *node) restore() {
	_, err := rundir.Read(filepath.Join(n.options.RunDir, status.Dir), debtsFile, &n.debts)
	if err != nil {
		n.logger.Warn("cannot read the debts of before, which are forgotten", "error", err)
	}
}

// publisher writes the status and the debts to files, beside the loop.
type publisher struct {
	options  Options
	observer *observer
	logger   hclog.Logger
	latest   chan snapshot
	failed   bool
}

func newPublisher(o Options, by *observer) *publisher {
	return &publisher{options: o, observer: by, logger: o.Logger, latest: make(chan snapshot, 1)}
}

// publish has a snapshot written, unless a newer one comes before.
func (p *publisher) publish(s snapshot) {
	for {
		select {
		case p.latest <- s:
			return
		default:
		}
		select {
		case <-p.latest:
		default:
		}
	}
}

func (p *publisher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-p.latest:
			p.write(s)
		}
	}
}

func (p *publisher) write(s snapshot) {
	p.observer.know(s.claims, s.joined)
	s.status.Written = time.Now().UTC()
	p.observer.name(&s.status)
	err := status.Write(p.options.RunDir, s.status)
	if err == nil {
		dir := filepath.Join(p.options.RunDir, status.Dir)
		if err = rundir.Write(dir, debtsFile, s.debts); err != nil {
			err = fmt.Errorf("write the debts to %s: %w", filepath.Join(dir, debtsFile), err)
		}
	}
	if err != nil && !p.failed {
		p.logger.Error("cannot publish the status", "error", err)
	}
	p.failed = err != nil
	if err := boundLog(filepath.Join(p.options.RunDir, status.Dir, status.LogFile)); err != nil {
		p.logger.Error("cannot begin the log anew", "error", err)
	}
}

// mostLogBytes is the size from which the log begins anew. It lies in memory, and nobody else may look after it: a governor outlives
// the device plugin that has started it.
const mostLogBytes = 1 << 20

// boundLog begins the log anew if it has become large and is what this process writes to, and keeps what it had as another file.
func boundLog(path string) error {
	own, ownErr := os.Stderr.Stat()
	log, logErr := os.Lstat(path)
	if ownErr != nil || logErr != nil || !os.SameFile(own, log) || log.Size() <= mostLogBytes {
		return nil //nolint:nilerr // it writes elsewhere
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path+".old", text[max(len(text)-mostLogBytes, 0):], 0o600)
	}
	return errors.Join(err, os.Truncate(path, 0))
}
