package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	mpsControl = "nvidia-cuda-mps-control"
	// mpsPatience is how long the control daemon may take to start, to answer and to end.
	mpsPatience = 20 * time.Second
)

// checkMPS checks limits where processes compute through NVIDIA's Multi-Process Service. The control daemon is the machine's own
// program, with directories of the run's own; the GPU's compute mode stays as it is.
func (c *checker) checkMPS(ctx context.Context) {
	const daemon, limit, own = "the control daemon", "two clients share one limit", "MPS's own limit, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	m, err := c.startMPS(ctx)
	if err != nil {
		c.broken(daemon, err)
		return
	}
	defer m.kill(c)
	before, keeper, figures, err := c.enterMPS(ctx, m)
	if err != nil {
		c.broken(daemon, err)
		return
	}
	defer keeper.kill()
	c.attempt(limit, func() (string, error) { return c.checkMPSLimit(ctx, m) })
	c.attempt(own, func() (string, error) { return c.checkMPSOwnLimit(ctx, m) })
	keeper.kill()
	c.attempt(daemon, func() (string, error) {
		left, err := c.endMPS(ctx, m, before)
		return figures + left, err
	})
}

// attempt enters what a check came to that ends at its first failure.
func (c *checker) attempt(name string, check func() (figures string, err error)) {
	if figures, err := check(); err != nil {
		c.broken(name, err)
	} else {
		c.note(name, passed, figures)
	}
}

// mps is a control daemon and how to reach it.
type mps struct {
	program string
	env     []string // what leads a process to the daemon
	cmd     *exec.Cmd
	errs    lastBytes
	ended   chan struct{}
}

func (c *checker) startMPS(ctx context.Context) (*mps, error) {
	program, err := exec.LookPath(mpsControl)
	if err != nil {
		return nil, &impossibleError{"there is no " + mpsControl + " on the PATH"}
	}
	if c.machine.major < 7 {
		return nil, &impossibleError{"MPS has memory limits from compute capability 7.0 on"}
	}
	m := &mps{program: program, ended: make(chan struct{})}
	for _, name := range []string{"PIPE", "LOG"} {
		dir := filepath.Join(c.work, "mps-"+strings.ToLower(name))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		m.env = append(m.env, "CUDA_MPS_"+name+"_DIRECTORY="+dir)
	}
	m.cmd = exec.Command(program, "-f")
	m.cmd.Env = m.under(c.bareEnv())
	m.cmd.Stdout, m.cmd.Stderr = &m.errs, &m.errs
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = m.cmd.Wait(); close(m.ended) }()
	began := time.Now()
	for {
		_, err := m.command(ctx, c, "get_server_list")
		select {
		case <-m.ended:
			return nil, fmt.Errorf("%s -f: %s%s", mpsControl, m.cmd.ProcessState, m.errs.said())
		case <-time.After(20 * time.Millisecond):
		}
		if err == nil {
			return m, nil
		}
		if time.Since(began) > mpsPatience || ctx.Err() != nil {
			m.kill(c)
			return nil, err
		}
	}
}

// under returns the environment of a client.
func (m *mps) under(env []string) []string {
	for _, entry := range m.env {
		name, value, _ := strings.Cut(entry, "=")
		env = setEnv(env, name, value)
	}
	return env
}

// command has the daemon run a command, and returns what it says.
func (m *mps) command(ctx context.Context, c *checker, command string) (string, error) {
	bounded, cancel := context.WithTimeout(ctx, mpsPatience)
	defer cancel()
	cmd := exec.CommandContext(bounded, m.program)
	cmd.Env = m.under(c.bareEnv())
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	out = bytes.TrimSpace(out)
	switch {
	case ctx.Err() != nil:
		err = &impossibleError{"the time was up, or somebody stopped the run"}
	case bounded.Err() != nil:
		err = fmt.Errorf("%s did not answer %q within %v", mpsControl, command, mpsPatience)
	case err != nil:
		err = fmt.Errorf("%s, the command %q: %w: %s", mpsControl, command, err, out)
	}
	return string(out), err
}

// kill ends the daemon and its server, if it still runs: also after the run was stopped.
func (m *mps) kill(c *checker) {
	select {
	case <-m.ended:
		return
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), mpsPatience/4)
	defer cancel()
	_, _ = m.command(ctx, c, "quit")
	select {
	case <-m.ended:
	case <-ctx.Done():
		_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
		<-m.ended
	}
}

// enterMPS has a first client start the server, and keeps it for the checks. before is the whole GPU's memory without them.
func (c *checker) enterMPS(ctx context.Context, m *mps) (before uint64, keeper *child, figures string, err error) {
	if before, err = c.settledBytes(); err != nil {
		return 0, nil, "", err
	}
	if keeper, err = c.start(m.under(c.bareEnv()), c.program("probe"), "obey"); err != nil {
		return 0, nil, "", err
	}
	if _, err = keeper.next(ctx, startPatience); err != nil {
		keeper.kill()
		return 0, nil, "", &impossibleError{"without Tranche, too, a client gets no context: " + err.Error() + m.errs.said()}
	}
	servers, err := m.command(ctx, c, "get_server_list")
	if err == nil && servers == "" {
		err = errors.New("the client has a context, and the daemon has no server: the client is none")
	}
	now, err2 := c.watcher.sample()
	if err = errors.Join(err, err2); err != nil {
		keeper.kill()
		return 0, nil, "", err
	}
	shown := "does not show the client"
	if bytes, yes := now.bytesOf(keeper.pid()); yes {
		shown = "shows the client with " + size(bytes)
	}
	figures = fmt.Sprintf("server and first client take %s of the whole GPU; NVML %s", signed(delta(now.Used, before)), shown)
	return before, keeper, figures, nil
}

// checkMPSLimit fills a limit from two clients.
func (c *checker) checkMPSLimit(ctx context.Context, m *mps) (string, error) {
	s, err := c.newScene(ctx, "")
	if err != nil {
		return "", err
	}
	defer s.close()
	s.claim.env = m.under(s.claim.env)
	first, _, err := s.pair(ctx)
	if err != nil {
		return "", err
	}
	r, err := s.within()
	if err != nil {
		return "", err
	}
	// NVML may show a client without what the server holds for it: the whole GPU's memory is the truth.
	if r.device > int64(s.claim.limitBytes) {
		return "", fmt.Errorf("the whole GPU's memory grew by %s under a limit of %s", signed(r.device), size(s.claim.limitBytes))
	}
	e, err := first.ask(ctx, stepPatience, "take %d", 64*mib)
	if err == nil && e.Result != outOfMemory {
		err = fmt.Errorf("the first client asks for more: %s (%d), not CUDA_ERROR_OUT_OF_MEMORY", e.Name, e.Result)
	}
	return fmt.Sprintf("limit %s; %s, of the whole GPU %s", size(s.claim.limitBytes), r, signed(r.device)), err
}

// checkMPSOwnLimit has a client without the shadow library meet the limit that MPS itself has for a process.
func (c *checker) checkMPSOwnLimit(ctx context.Context, m *mps) (string, error) {
	limit := c.machine.contextBytes + 512*mib
	env := setEnv(m.under(c.bareEnv()), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", fmt.Sprintf("0=%dM", limit/mib))
	p, err := c.start(env, c.program("probe"), "obey")
	if err != nil {
		return "", err
	}
	defer p.kill()
	empty, err := p.next(ctx, stepPatience)
	if err != nil {
		return "", err
	}
	full, err := p.ask(ctx, stepPatience, "fill %d %d", 64*mib, limit+256*mib)
	if err == nil && full.Result != outOfMemory {
		err = fmt.Errorf("under a limit of %s of MPS %s were taken, and then: %s", size(limit), size(full.Taken), full.Name)
	}
	return fmt.Sprintf("limit %s; the process sees a total of %s, and has %s beside its context", size(limit), size(empty.Total),
		size(full.Taken)), err
}

// endMPS has the daemon quit, and returns what is left of the whole GPU's memory.
func (c *checker) endMPS(ctx context.Context, m *mps, before uint64) (string, error) {
	if _, err := m.command(ctx, c, "quit"); err != nil {
		return "", err
	}
	select {
	case <-m.ended:
	case <-time.After(mpsPatience):
		return "", fmt.Errorf("the daemon did not end within %v of the command to quit", mpsPatience)
	}
	after, err := c.settledBytes()
	return fmt.Sprintf("; after the daemon has quit %s are left", signed(delta(after, before))), err
}
