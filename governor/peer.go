package governor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/governor/page"
	"github.com/tranche-gpu/tranche/governor/protocol"
	"github.com/tranche-gpu/tranche/governor/turns"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// peer is a process. It has one page for all its GPUs, and a connection for each of its claims.
type peer struct {
	id     proc.ID
	name   string // of its program, as it was when the process joined
	pidfd  int
	page   *page.Page
	conns  []*conn
	states [protocol.MaxGPUs]turns.State
}

// peer returns what is known of a process, which is new if nothing is.
func (n *node) peer(id proc.ID) (*peer, error) {
	if p := n.peers[id]; p != nil {
		return p, nil
	}
	pages, err := page.New()
	if err != nil {
		return nil, err
	}
	p := &peer{id: id, name: nameOf(id.PID), page: pages}
	if p.pidfd, err = unix.PidfdOpen(id.PID, 0); err == nil {
		err = n.loop.add(p.pidfd, func() { n.died(p) })
		if err != nil {
			_ = unix.Close(p.pidfd)
		}
	}
	if err != nil {
		pages.Close()
		return nil, fmt.Errorf("watch process %d: %w", id.PID, err)
	}
	// The process ID may be another's by now.
	if !id.MayLive() {
		n.loop.remove(p.pidfd)
		pages.Close()
		return nil, fmt.Errorf("process %d has ended", id.PID)
	}
	n.peers[id] = p
	return p, nil
}

// died drops a process that has ended. A child that it has forked may keep its connections.
func (n *node) died(p *peer) {
	for len(p.conns) > 0 {
		n.drop(p.conns[0], "")
	}
}

// release drops a process without connections.
func (n *node) release(p *peer) {
	if len(p.conns) > 0 {
		return
	}
	n.loop.remove(p.pidfd)
	p.page.Close()
	delete(n.peers, p.id)
}

// closed reports whether a gate of the process is not open.
func (p *peer) closed() bool {
	for _, s := range p.states {
		if s != turns.Open {
			return true
		}
	}
	return false
}
