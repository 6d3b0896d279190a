package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// event is a line that a probe prints. Which members it has depends on the step.
type event struct {
	Step string `json:"step"`
	Why  string `json:"why"`
	What string `json:"what"`

	Result    int    `json:"result"` // a CUresult
	Name      string `json:"name"`   // of the result, mostly
	Where     string `json:"where"`
	Taken     uint64 `json:"taken"`
	Pieces    int    `json:"pieces"`
	Free      uint64 `json:"free"`
	Total     uint64 `json:"total"`
	Device    uint64 `json:"device_total"`
	Smallest  uint64 `json:"smallest"`
	Setting   uint64 `json:"setting"`
	Peer      int    `json:"peer"`
	Title     string `json:"title"`
	Group     string `json:"group"`
	Asked     uint64 `json:"asked"`
	Own       uint64 `json:"own"`
	Exported  bool   `json:"exported"`
	Answered  int    `json:"answered"`
	Same      bool   `json:"same"`
	Strangers int    `json:"strangers"`

	// Of programs that compute in turns.
	Loops    int     `json:"loops"`
	DriverNS float64 `json:"driver_ns"`
	Kernels  uint64  `json:"kernels"`
	AtNS     uint64  `json:"at_ns"`
	Requests int     `json:"requests"`
	P50US    float64 `json:"p50_us"`
	P99US    float64 `json:"p99_us"`

	// Of PyTorch.
	Version string  `json:"version"`
	Type    string  `json:"type"`
	Message string  `json:"message"`
	Value   float64 `json:"value"`
}

const outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY

// impossibleError says why something cannot be checked on this machine.
type impossibleError struct{ why string }

func (e *impossibleError) Error() string { return e.why }

// child is a probe at work: it prints a line and waits for one.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	events chan event
	failed chan error // why there are no more events
	errs   *lastBytes
	ended  chan struct{}
}

// start starts a probe with an environment of its own.
func (c *checker) start(env []string, name string, args ...string) (*child, error) {
	p := &child{
		cmd: exec.Command(name, args...), events: make(chan event, 1024), failed: make(chan error, 1),
		errs: &lastBytes{}, ended: make(chan struct{}),
	}
	p.cmd.Env = env
	p.cmd.Stderr = p.errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	// Not StdinPipe and StdoutPipe: a process that the probe leaves behind goes on listening and speaking.
	heard, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	read, said, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, heard.Close(), stdin.Close())
	}
	p.stdin, p.cmd.Stdin, p.cmd.Stdout = stdin, heard, said
	err = p.cmd.Start()
	heard.Close()
	said.Close()
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), read.Close())
	}
	go p.listen(read)
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	return p, nil
}

func (p *child) listen(read *os.File) {
	defer read.Close()
	lines := bufio.NewScanner(read)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "{") {
			continue // a library that is chatty
		}
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			p.failed <- fmt.Errorf("it says %q: %w", lines.Text(), err)
			return
		}
		p.events <- e
	}
	p.failed <- io.EOF
}

// next waits for the next line.
func (p *child) next(ctx context.Context, patience time.Duration) (event, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case e := <-p.events:
		return p.received(e)
	default:
	}
	select {
	case e := <-p.events:
		return p.received(e)
	case err := <-p.failed:
		select { // what came before the end
		case e := <-p.events:
			p.failed <- err
			return p.received(e)
		default:
		}
		if errors.Is(err, io.EOF) {
			p.waitEnded()
			err = fmt.Errorf("it ended (%s)", p.cmd.ProcessState)
		}
		return event{}, fmt.Errorf("%s: %w%s", filepath.Base(p.cmd.Path), err, p.errs.said())
	case <-timer.C:
		return event{}, fmt.Errorf("%s said nothing for %v%s", filepath.Base(p.cmd.Path), patience, p.errs.said())
	case <-ctx.Done():
		return event{}, &impossibleError{"the time was up, or somebody stopped the run"}
	}
}

func (p *child) received(e event) (event, error) {
	if e.Step == "impossible" {
		return e, &impossibleError{e.Why}
	}
	return e, nil
}

// expect waits for a step and fails if it is another one.
func (p *child) expect(ctx context.Context, patience time.Duration, step string) (event, error) {
	e, err := p.next(ctx, patience)
	if err == nil && e.Step != step {
		err = fmt.Errorf("%s: the step %q where %q was due", filepath.Base(p.cmd.Path), e.Step, step)
	}
	return e, err
}

// tell sends a line.
func (p *child) tell(format string, args ...any) {
	fmt.Fprintf(p.stdin, format+"\n", args...)
}

// ask sends a line and waits for the answer.
func (p *child) ask(ctx context.Context, patience time.Duration, format string, args ...any) (event, error) {
	p.tell(format, args...)
	return p.next(ctx, patience)
}

// waitEnded waits a few seconds for the probe's end, and says whether it came.
func (p *child) waitEnded() bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(5 * time.Second):
		return false
	}
}

func (p *child) pid() int { return p.cmd.Process.Pid }

// kill ends the probe and whatever it has started, and waits for it.
func (p *child) kill() {
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	p.stdin.Close()
	p.waitEnded()
}

// killOne ends the probe alone.
func (p *child) killOne() {
	_ = syscall.Kill(p.pid(), syscall.SIGKILL)
	p.waitEnded()
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu    sync.Mutex
	bytes []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes = append(l.bytes, p...)
	if over := len(l.bytes) - 2000; over > 0 {
		l.bytes = l.bytes[over:]
	}
	return len(p), nil
}

// said is the end of an error message: what the program wrote on stderr.
func (l *lastBytes) said() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(string(l.bytes))
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	return ": " + strings.Join(lines[max(0, len(lines)-3):], "; ")
}
