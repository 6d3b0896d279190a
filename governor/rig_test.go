package governor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/protocol"
	"github.com/tranche-gpu/tranche/governor/status"
)

// patience is how long tests wait for what happens at once on a quiet machine.
const patience = time.Minute

// rig is a governor and a ledger. Its programs are in the test's own process, each with an index of its own in the page.
type rig struct {
	t       *testing.T
	options Options
	ledger  *claim.Ledger
	slices  int
	end     func()
	ended   chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, options: Options{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Logger: hclog.NewNullLogger(),
	}}
	var err error
	r.ledger, err = claim.Open(claim.Options{StateDir: r.options.StateDir, RunDir: r.options.RunDir})
	must.NoError(t, err)
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{})
	o := r.options
	o.Ready = func() { close(ready) }
	r.end, r.ended = cancel, make(chan error, 1)
	go func() { r.ended <- Run(ctx, o) }()
	select {
	case <-ready:
	case err := <-r.ended:
		r.t.Fatalf("the governor has ended: %v", err)
	}
}

func (r *rig) stop() {
	if r.end == nil {
		return
	}
	r.end()
	must.NoError(r.t, <-r.ended)
	r.end = nil
}

// claim makes a governed claim.
func (r *rig) claim(share int) *member { return r.claimOn("GPU-1", share) }

func (r *rig) claimOn(gpu string, share int) *member {
	r.t.Helper()
	r.slices++
	c, _, err := r.ledger.Reserve(r.t.Context(), claim.Request{
		GPU: claim.GPU{UUID: gpu, Name: "test"}, Slices: []string{claim.SliceName(gpu, r.slices)}, LimitBytes: 1 << 30,
		Owner: claim.OwnerNomad, Compute: &claim.Compute{Share: share, Max: 1000, Class: claim.ClassNormal},
	})
	must.NoError(r.t, err)
	return &member{governed: governed{Claim: *c, dir: filepath.Join(r.options.RunDir, "claims", c.ID)}}
}

// program is a fake of the governed library.
type program struct {
	t     *testing.T
	claim *member
	fd    int
	gpu   int
	page  []byte
}

// dial connects to a claim's socket as soon as there is one.
func dial(t *testing.T, c *member) *program {
	t.Helper()
	p := &program{t: t, claim: c}
	awaitTrue(t, "the socket of claim "+c.ID, func() bool {
		fd, err := connect(c.dir)
		p.fd = fd
		return err == nil
	})
	t.Cleanup(p.close)
	return p
}

func connect(dir string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	at, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(at)
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", at, protocol.Socket)})
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// join joins a claim, and maps the page.
func (r *rig) join(c *member, index int) *program {
	r.t.Helper()
	p := dial(r.t, c)
	p.gpu = index
	p.write(append(protocol.Message{Kind: protocol.Hello, GPU: 1, Value: [5]uint64{0, uint64(index)}}.Encode(), uuid(c.GPU.UUID)...))
	m := p.receive()
	must.Eq(r.t, protocol.Welcome, m.Kind)
	must.Eq(r.t, 1<<index, m.Flags)
	must.NotNil(r.t, p.page)
	return p
}

func uuid(text string) []byte {
	room := make([]byte, protocol.UUIDSize)
	copy(room, text)
	return room
}

func (p *program) write(packet []byte) {
	must.NoError(p.t, unix.Send(p.fd, packet, unix.MSG_NOSIGNAL))
}

func (p *program) send(m protocol.Message) {
	p.t.Helper()
	m.GPU = uint32(p.gpu)
	p.write(m.Encode())
}

// receive waits for the next message.
func (p *program) receive() protocol.Message {
	p.t.Helper()
	packet, rights := make([]byte, protocol.MaxSize), make([]byte, unix.CmsgSpace(4))
	must.True(p.t, p.readable(), must.Sprint("no message has come"))
	size, rightsSize, _, _, err := unix.Recvmsg(p.fd, packet, rights, unix.MSG_CMSG_CLOEXEC)
	must.NoError(p.t, err)
	must.Positive(p.t, size, must.Sprint("the connection has ended"))
	m, _, err := protocol.Decode(packet[:size])
	must.NoError(p.t, err)
	if rightsSize > 0 {
		p.mapPage(rights[:rightsSize])
	}
	return m
}

func (p *program) readable() bool {
	polled := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if count, err := unix.Poll(polled, int(patience.Milliseconds())); err == nil && count > 0 {
			return true
		}
	}
	return false
}

func (p *program) mapPage(rights []byte) {
	p.t.Helper()
	messages, err := unix.ParseSocketControlMessage(rights)
	must.NoError(p.t, err)
	fds, err := unix.ParseUnixRights(&messages[0])
	must.NoError(p.t, err)
	p.page, err = unix.Mmap(fds[0], 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must.NoError(p.t, err)
	must.NoError(p.t, unix.Close(fds[0]))
	page := p.page
	p.t.Cleanup(func() { _ = unix.Munmap(page) })
}

// ended reports whether the governor has ended the connection.
func (p *program) ended() bool {
	p.t.Helper()
	for {
		must.True(p.t, p.readable(), must.Sprint("the connection goes on"))
		size, _, _, _, err := unix.Recvmsg(p.fd, make([]byte, protocol.MaxSize), nil, 0)
		if err != nil || size == 0 {
			return true
		}
	}
}

func (p *program) close() {
	if p.fd > 0 {
		_ = unix.Close(p.fd)
		p.fd = 0
	}
}

func (p *program) state() int {
	return int(atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.page[128+64*p.gpu]))))
}

func (p *program) turn() uint64      { return p.word(128 + 64*p.gpu + 8) }
func (p *program) heartbeat() uint64 { return p.word(64) }

func (p *program) word(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&p.page[at])))
}

// await waits until the page says a state.
func (p *program) await(state int) {
	p.t.Helper()
	awaitTrue(p.t, fmt.Sprintf("the state %d", state), func() bool { return p.state() == state })
}

func awaitTrue(t *testing.T, what string, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (r *rig) awaitStatus(is func(*status.Status) bool) (found *status.Status) {
	r.t.Helper()
	awaitTrue(r.t, "the status", func() bool {
		s, err := status.Read(r.options.RunDir)
		must.NoError(r.t, err)
		found = s
		return s != nil && is(s)
	})
	return found
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// joinEnv has the test's binary join a claim, and wait.
const joinEnv = "TRANCHE_TEST_JOIN"

// joiner starts a process that joins a claim, and never says anything again.
func joiner(t *testing.T, c *member) *exec.Cmd {
	t.Helper()
	process := exec.Command("/proc/self/exe", c.dir, c.GPU.UUID)
	process.Env = []string{joinEnv + "=1"}
	in, err := process.StdinPipe()
	must.NoError(t, err)
	out, err := process.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, process.Start())
	t.Cleanup(func() {
		in.Close()
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	_, err = out.Read(make([]byte, 1)) // it has joined
	must.NoError(t, err)
	return process
}

func TestMain(m *testing.M) {
	if os.Getenv(logsEnv) != "" {
		governAndLog(os.Args[1], os.Args[2])
	}
	if os.Getenv(joinEnv) == "" {
		os.Exit(m.Run())
	}
	fd, err := connect(os.Args[1])
	for ; err != nil; fd, err = connect(os.Args[1]) {
		time.Sleep(time.Millisecond)
	}
	hello := protocol.Message{Kind: protocol.Hello, GPU: 1}.Encode()
	_ = unix.Send(fd, append(hello, uuid(os.Args[2])...), 0)
	_, _ = unix.Read(fd, make([]byte, protocol.Size))
	// A child keeps the socket.
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	child, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "read line"}, &os.ProcAttr{Files: []*os.File{os.Stdin, nil, nil, os.NewFile(uintptr(fd), "socket")}})
	if err != nil {
		os.Exit(1)
	}
	fmt.Print("x")
	_, _ = child.Wait()
}
