package governor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/page"
	"github.com/tranche-gpu/tranche/governor/protocol"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/governor/turns"
	"github.com/tranche-gpu/tranche/internal/proc"
)

// crowd is a node without sockets, on which a claim has many processes, and another one has one. Time is what the test says.
type crowd struct {
	*node
	t         *testing.T
	now       time.Duration
	many, one *member
	log       bytes.Buffer
}

func newCrowd(t *testing.T, pids ...int) *crowd {
	t.Helper()
	c := &crowd{t: t, now: time.Second}
	c.node = newNode(nil, Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &c.log})})
	c.publish = func(snapshot) {}
	c.one, c.many = c.claim("0badcafe"), c.claim("0badcaff")
	c.join(c.one, os.Getpid())
	for _, pid := range pids {
		c.join(c.many, pid)
	}
	return c
}

func (c *crowd) claim(id string) *member {
	m := &member{governed: governed{Claim: claim.Claim{
		ID: id, GPU: claim.GPU{UUID: "GPU-1"}, Compute: &claim.Compute{Share: 500, Max: 1000, Class: claim.ClassNormal},
	}}}
	c.claims[id] = m
	return m
}

func (c *crowd) join(m *member, pid int) {
	c.t.Helper()
	pages, err := page.New()
	must.NoError(c.t, err)
	c.t.Cleanup(pages.Close)
	c.last++
	p := &peer{id: proc.ID{PID: pid, StartTime: uint64(c.last)}, name: "python3", page: pages}
	o := &conn{node: c.node, fd: -1, of: m, pid: pid, peer: p, process: c.last}
	p.conns, m.conns = []*conn{o}, append(m.conns, o)
	c.peers[p.id], c.conns[o], c.processes[o.process] = p, true, o
	c.gpu("GPU-1").Join(c.now, m.ID, part(m.Compute), o.process)
	c.apply()
}

// drains has the claim with many processes have a turn, which ends and is not drained for a while.
func (c *crowd) drains() {
	c.t.Helper()
	g := c.gpu("GPU-1")
	g.Want(c.now, c.many.ID)
	for range 1000 {
		s, _ := g.Status(c.now, c.many.ID)
		if other, _ := g.Status(c.now, c.one.ID); other.State == turns.Closed {
			g.Drained(c.now, c.one.ID, c.one.conns[0].process, other.Turn, turns.Drain{})
			g.Want(c.now, c.one.ID)
		}
		if s.State == turns.Closed && s.Turns > 0 {
			break
		}
		c.now += time.Millisecond
		g.Tick(c.now)
	}
	c.apply()
	c.now += 20 * time.Millisecond
}

// reads returns how often a function reads a file, by the kernel's count.
func reads(t *testing.T, do func()) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	count := func() (n int) {
		text, err := os.ReadFile("/proc/thread-self/io")
		must.NoError(t, err)
		_, counted, _ := strings.Cut(string(text), "syscr:")
		_, err = fmt.Sscan(counted, &n)
		must.NoError(t, err)
		return n
	}
	first := count()
	own := count() - first // what counting takes
	before := count()
	do()
	return count() - before - own
}

func repeat(pid, n int) (all []int) {
	for range n {
		all = append(all, pid)
	}
	return all
}

// All claims wait while the governor reads files: how many must not grow with the processes of one claim.
func TestMany_ReadsDoNotGrow(t *testing.T) {
	running := sleeper(t)
	stopped := sleeper(t)
	must.NoError(t, unix.Kill(stopped, unix.SIGSTOP))
	for name, pid := range map[string]int{"running": running, "stopped": stopped} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, repeat(pid, 300)...)
			c.drains()
			for range 50 {
				must.Less(t, 400, reads(t, func() { c.tick(c.now) }))
				c.now += beat
			}
		})
	}
}

// A thousand processes that join at once have the status published some times, and not a thousand.
func TestMany_JoinsArePublishedTogether(t *testing.T) {
	c := newCrowd(t)
	published := 0
	c.publish = func(snapshot) { published++ }
	for range 1000 {
		c.now += time.Millisecond
		c.publishSoon()
		c.tick(c.now)
	}
	must.Between(t, 2, published, 10)
}

// An event is one short line of the log, whatever the processes are called and however many there are.
func TestMany_OneLineOfLog(t *testing.T) {
	isShort := func(t *testing.T, log string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(log), "\n")
		must.Between(t, 1, len(lines), 3)
		for _, line := range lines {
			must.Less(t, 1000, len(line), must.Sprint(line))
			must.StrContains(t, line, "[WARN]")
			must.StrContains(t, line, "more\"")
		}
	}
	t.Run("overrun", func(t *testing.T) {
		c := newCrowd(t, repeat(os.Getpid(), 300)...)
		for _, o := range c.many.conns {
			o.peer.name = "py\nthon"
		}
		c.drains()
		for range 50 {
			c.now += 10 * time.Millisecond
			c.gpu("GPU-1").Tick(c.now)
			c.apply()
		}
		isShort(t, c.log.String())
	})
	t.Run("outside of turns", func(t *testing.T) {
		var log bytes.Buffer
		o := &observer{options: Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &log})}}
		found := make(map[string][]status.Process)
		for pid := range 300 {
			found["0badcafe"] = append(found["0badcafe"], status.Process{PID: pid, Name: "py\nthon"})
		}
		o.log(found)
		isShort(t, log.String())
	})
	t.Run("refused", func(t *testing.T) {
		c := newCrowd(t)
		o := &conn{node: c.node, of: c.many, pid: os.Getpid()}
		uuids := repeatText(strings.Repeat("\n", protocol.UUIDSize), protocol.MaxGPUs)
		err := o.join(protocol.Message{Kind: protocol.Hello}, uuids)
		must.ErrorContains(t, err, "it names 16 GPUs")
		must.Less(t, 300, len(err.Error()))
	})
}

func repeatText(text string, n int) (all []string) {
	for range n {
		all = append(all, text)
	}
	return all
}

// logsEnv has the test's binary govern, with a run directory and a state directory, and write a large log first.
const logsEnv = "TRANCHE_TEST_LOGS"

func governAndLog(runDir, stateDir string) {
	for range 3 << 10 {
		fmt.Fprintln(os.Stderr, strings.Repeat("x", 1<<10))
	}
	fmt.Fprintln(os.Stderr, "the last line")
	err := Run(context.Background(), Options{RunDir: runDir, StateDir: stateDir, Logger: hclog.NewNullLogger()})
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A governor that the device plugin has started outlives it, and its log is in memory.
func TestLog_DoesNotFillMemory(t *testing.T) {
	runDir := t.TempDir()
	must.NoError(t, status.MakeDir(runDir))
	path := filepath.Join(runDir, status.Dir, status.LogFile)
	other := filepath.Join(runDir, "other")
	for _, file := range []string{path, other} {
		log, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		must.NoError(t, err)
		governor := exec.Command("/proc/self/exe", runDir, t.TempDir())
		governor.Env, governor.Stderr = []string{logsEnv + "=1"}, log
		must.NoError(t, governor.Start())
		log.Close()
		began := time.Now()
		size := func() int64 {
			info, err := os.Stat(file)
			must.NoError(t, err)
			return info.Size()
		}
		if file == path {
			awaitTrue(t, "the log to begin anew", func() bool { info, _ := os.Stat(path + ".old"); return info != nil && size() < 1<<20 })
			text, err := os.ReadFile(path + ".old")
			must.NoError(t, err)
			must.Between(t, 1<<10, len(text), 1<<20)
			must.StrHasSuffix(t, "the last line\n", string(text))
		} else {
			awaitTrue(t, "the status", func() bool {
				s, err := status.Read(runDir)
				must.NoError(t, err)
				return s.Written.After(began)
			})
			must.Greater(t, 3<<20, size(), must.Sprint("a file of the operator's"))
		}
		_ = governor.Process.Kill()
		_ = governor.Wait()
	}
}

// A process that joins claims on several GPUs costs the same, however many have joined them: all claims wait for that.
func TestMany_PartnersDoNotGrow(t *testing.T) {
	c := newCrowd(t)
	const gpus = 8
	var claims []*member
	for i := range gpus {
		m := c.claim(fmt.Sprintf("%08x", i))
		m.GPU.UUID = fmt.Sprintf("GPU-%d", i)
		claims = append(claims, m)
	}
	pages, err := page.New()
	must.NoError(t, err)
	t.Cleanup(pages.Close)
	join := func() {
		p := &peer{id: proc.ID{PID: os.Getpid(), StartTime: uint64(c.last)}, page: pages}
		c.peers[p.id] = p
		for gpu, m := range claims {
			o := &conn{node: c.node, fd: -1, of: m, pid: p.id.PID, peer: p}
			p.conns, m.conns = append(p.conns, o), append(m.conns, o)
			c.conns[o] = true
			o.enter(gpu)
		}
	}
	// The shortest time is what the work takes on a machine that does other things, too.
	shortest := func() time.Duration {
		least := time.Hour
		for range 30 {
			began := monotonic()
			join()
			least = min(least, monotonic()-began)
		}
		return least
	}
	few := shortest()
	for range 1000 {
		join()
	}
	must.Less(t, 10*few, shortest())
}
