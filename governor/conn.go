package governor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/device/processes"
	"github.com/tranche-gpu/tranche/governor/protocol"
	"github.com/tranche-gpu/tranche/governor/turns"
	"github.com/tranche-gpu/tranche/internal/proc"
)

const (
	// mostConns bounds the connections of one claim, and mostMessages the messages of one connection in a second: a program could
	// keep the governor busy with more.
	mostConns, mostMessages = 1024, 20_000
	// complains is how often is logged what is wrong with a claim's processes.
	complains = 10 * time.Second
)

// conn is the connection of a process for one claim.
type conn struct {
	node *node
	fd   int
	of   *member
	pid  int
	// peer is the process once it has joined, process its name in the state machine, and gpu its index in the page. A process
	// that cannot use the claim's GPU joins without a gate.
	peer    *peer
	process turns.Process
	gpu     int
	// welcome is whether it has been sent its page, without which it can't do anything with other messages.
	welcome bool
	// missed is whether a message could not be sent, because the process does not read, or had not been sent its page yet.
	missed bool
	// messages is how many have come in the second.
	second   time.Duration
	messages int
}

// accept takes new connections to a claim's socket.
func (n *node) accept(m *member, listener int) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		c := &conn{node: n, fd: fd, of: m}
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		switch {
		case err != nil || cred.Pid <= 0: // of another PID namespace than ours or one below it
			n.complain(m, 0, "it is not in this PID namespace, nor in one below it")
		case len(m.conns) >= mostConns:
			n.complain(m, int(cred.Pid), "the claim has too many connections")
		default:
			c.pid = int(cred.Pid)
			err = n.loop.add(fd, c.read)
			if err == nil {
				m.conns, n.conns[c] = append(m.conns, c), true
				continue
			}
		}
		_ = unix.Close(fd)
	}
}

// read handles the messages that have come.
func (c *conn) read() {
	var packet [protocol.MaxSize + 1]byte
	for range 8 { // others have messages, too
		size, _, flags, _, err := unix.Recvmsg(c.fd, packet[:], nil, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return
		case err != nil || size == 0:
			c.node.drop(c, "")
			return
		case flags&unix.MSG_TRUNC != 0:
			c.node.drop(c, "it sent a message that is too long")
			return
		}
		m, uuids, err := protocol.Decode(packet[:size])
		if err == nil {
			err = c.count()
		}
		if err == nil {
			err = c.handle(m, uuids)
		}
		if err != nil {
			if c.process == 0 {
				c.send(protocol.Message{Kind: protocol.Refused}, -1)
			}
			c.node.drop(c, err.Error())
			return
		}
		if !c.node.conns[c] {
			return // it has said goodbye
		}
	}
}

// count returns an error if the process sends too much.
func (c *conn) count() error {
	if second := monotonic() / time.Second; second != c.second {
		c.second, c.messages = second, 0
	}
	if c.messages++; c.messages > mostMessages {
		return fmt.Errorf("it has sent more than %d messages in a second", mostMessages)
	}
	return nil
}

// handle handles one message.
func (c *conn) handle(m protocol.Message, uuids []string) error {
	switch {
	case m.Kind == protocol.Hello && c.peer == nil:
		return c.join(m, uuids)
	case c.peer == nil:
		return fmt.Errorf("its first message is of kind %d", m.Kind)
	case m.Kind == protocol.Bye:
		c.node.drop(c, "")
		return nil
	case c.process == 0 || int(m.GPU) != c.gpu:
		return nil
	}
	if c.missed {
		c.missed = false
		c.tell()
	}
	n, now, id := c.node, monotonic(), c.of.ID
	g := n.gpu(c.of.GPU.UUID)
	switch m.Kind {
	case protocol.Want:
		g.Want(now, id)
	case protocol.Idle:
		g.Idle(now, id, c.process, m.Turn, duration(m.Value[0]))
	case protocol.Ending:
		g.Waits(now, id, c.process, m.Turn, m.Value[1] != 0)
		g.Ending(now, id, c.process, m.Turn, duration(m.Value[0]))
	case protocol.Drained:
		g.Drained(now, id, c.process, m.Turn, turns.Drain{
			Ago: now - duration(m.Value[0]), Empty: duration(m.Value[1]), First: duration(m.Value[2]),
		})
	default:
		return nil
	}
	n.apply()
	return nil
}

// duration returns a time of a message, which may be anything.
func duration(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)) }

// join lets a process join, and sends it its page.
func (c *conn) join(m protocol.Message, uuids []string) error {
	id, err := proc.Find(c.pid)
	if err != nil {
		return fmt.Errorf("it has ended: %w", err)
	}
	index := int(min(m.Value[1], protocol.MaxGPUs))
	switch {
	case len(uuids) == 0:
	case index >= protocol.MaxGPUs:
		return fmt.Errorf("its GPU has the index %d", m.Value[1])
	case len(uuids) > 1 || uuids[0] != c.of.GPU.UUID:
		return fmt.Errorf("it names %d GPUs, the first is %q, and the claim is on %s", len(uuids), uuids[0], c.of.GPU.UUID)
	}
	if c.of.isForeign(c.pid) {
		return errors.New("it is not in the claim's container")
	}
	p, err := c.node.peer(id)
	if err != nil {
		return err
	}
	if len(uuids) > 0 && slices.ContainsFunc(p.conns, func(o *conn) bool { return o.process != 0 && o.gpu == index }) {
		c.node.release(p)
		return errors.New("it has joined with this GPU before")
	}
	c.peer = p
	p.conns = append(p.conns, c)
	flags := uint64(0)
	if len(uuids) > 0 {
		flags = 1 << index
		c.enter(index)
	}
	welcome := protocol.Message{Kind: protocol.Welcome, GPU: uint32(index), Flags: flags, Value: [5]uint64{uint64(beat)}}
	if !c.send(welcome, p.page.FD()) {
		return errors.New("it does not read")
	}
	if c.welcome = true; c.missed {
		c.missed = false
		c.tell()
	}
	c.node.logger.Debug("process joined", "claim", c.of.ID, "pid", c.pid)
	return nil
}

// isForeign reports whether a process is in another container than the claim's, as far as that is known: the claim may be
// about to have another one. What a command under `tranche run` has left running need not descend from it any more.
func (m *member) isForeign(pid int) bool {
	return m.Owner != claim.OwnerRun && m.Container != nil && claim.Alive(*m.Container) && len(processes.Of([]*claim.Claim{&m.Claim}).Claims(pid)) == 0
}

// enter has the process take part in its claim's turns.
func (c *conn) enter(index int) {
	n, now := c.node, monotonic()
	n.last++
	c.process, c.gpu = n.last, index
	n.processes[c.process] = c
	n.gpu(c.of.GPU.UUID).Join(now, c.of.ID, part(c.of.Compute), c.process)
	n.pair(now, c, 1)
	n.apply()
	c.show()
	n.publishSoon()
}

// complain logs why a process of a claim does not compute in turns, at a limited rate.
func (n *node) complain(m *member, pid int, reason string) {
	now := monotonic()
	if m.complained > 0 && now-m.complained < complains {
		return
	}
	m.complained = now
	n.logger.Warn("process does not compute in turns", "claim", m.ID, "pid", pid, "reason", reason)
}

// drop ends a connection. The process's gates open.
func (n *node) drop(c *conn, reason string) {
	if !n.conns[c] {
		return
	}
	if reason != "" {
		n.complain(c.of, c.pid, reason)
	}
	delete(n.conns, c)
	c.of.conns = slices.DeleteFunc(c.of.conns, func(o *conn) bool { return o == c })
	n.loop.remove(c.fd)
	if p := c.peer; p != nil {
		p.conns = slices.DeleteFunc(p.conns, func(o *conn) bool { return o == c })
		defer n.release(p)
	}
	if c.process != 0 {
		delete(n.processes, c.process)
		now := monotonic()
		n.gpu(c.of.GPU.UUID).Leave(now, c.of.ID, c.process)
		n.pair(now, c, -1)
		n.apply()
		n.publishSoon()
	}
}

// send sends a message, with a descriptor unless that is negative. It reports whether the process has room for it.
func (c *conn) send(m protocol.Message, fd int) bool {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	_, err := unix.SendmsgN(c.fd, m.Encode(), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err == nil
}
