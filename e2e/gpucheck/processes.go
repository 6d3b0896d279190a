package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// checkProcesses checks what several processes under one limit do to each other, and what is left of the dead.
func (c *checker) checkProcesses(ctx context.Context) {
	for _, check := range []struct {
		name string
		run  func(context.Context, *scene) (figures string, err error)
	}{
		{"what cuMemGetInfo and cuDeviceTotalMem say", c.checkInfo},
		{"host memory is not counted", c.checkPinned},
		{"two processes share one limit", c.checkTwo},
		{"a killed process gives everything back at once", c.checkKilled},
		{"a process that ends without freeing gives everything back", c.checkExit},
		{"a stopped process holds up nobody", c.checkStopped},
		{"when nothing is left, a further process gets an error", c.checkNothingLeft},
		{"another limit on the same GPU is another's", c.checkNeighbour},
	} {
		s, err := c.newScene(ctx, check.name)
		if err != nil {
			c.broken(check.name, err)
			continue
		}
		figures, err := check.run(ctx, s)
		if err != nil {
			c.broken(check.name, err)
		} else {
			c.note(check.name, passed, figures)
		}
		s.close()
	}
}

// scene is a limit and the processes under it.
type scene struct {
	c     *checker
	name  string
	claim *claim
	meter *meter
	all   []*child
}

func (c *checker) newScene(ctx context.Context, name string) (*scene, error) {
	if ctx.Err() != nil {
		return nil, &impossibleError{"there was no time left, or somebody stopped the run"}
	}
	l, err := c.newClaim(c.machine.limitBytes)
	if err != nil {
		return nil, err
	}
	m, err := c.newMeter(l)
	return &scene{c: c, name: name, claim: l, meter: m}, err
}

// enter starts a process under the limit that has a context.
func (s *scene) enter(ctx context.Context) (*child, error) {
	p, err := s.c.start(s.claim.env, s.c.program("probe"), "obey")
	if err != nil {
		return nil, err
	}
	s.all = append(s.all, p)
	_, err = p.next(ctx, stepPatience)
	return p, err
}

func (s *scene) close() {
	for _, p := range s.all {
		p.kill()
	}
}

func (s *scene) read() (reading, error) {
	var pids []int
	for _, p := range s.all {
		select {
		case <-p.ended:
		default:
			pids = append(pids, p.pid())
		}
	}
	return s.meter.read(pids...)
}

// fill takes all that there is, and makes sure that the limit is what stops it.
func (s *scene) fill(ctx context.Context, p *child) error {
	limit := s.claim.limitBytes
	full, err := p.ask(ctx, stepPatience, "fill %d %d", uint64(128*mib), limit+256*mib)
	if err != nil {
		return err
	}
	if full.Result != outOfMemory {
		return fmt.Errorf("after %s under a limit of %s: %s (%d), not CUDA_ERROR_OUT_OF_MEMORY", size(full.Taken), size(limit),
			full.Name, full.Result)
	}
	return nil
}

func (s *scene) take(ctx context.Context, p *child, bytes uint64) error {
	e, err := p.ask(ctx, stepPatience, "take %d", bytes)
	if err == nil && e.Result != 0 {
		err = fmt.Errorf("%s: %s (%d)", size(bytes), e.Name, e.Result)
	}
	return err
}

// within fails if the processes hold more than the limit.
func (s *scene) within() (reading, error) {
	r, err := s.read()
	if err == nil && r.physical() > s.claim.limitBytes {
		err = fmt.Errorf("%s are physically taken, over the limit of %s", size(r.physical()), size(s.claim.limitBytes))
	}
	return r, err
}

func (c *checker) checkInfo(ctx context.Context, s *scene) (string, error) {
	p, err := s.enter(ctx)
	if err == nil {
		err = s.take(ctx, p, 256*mib)
	}
	if err != nil {
		return "", err
	}
	info, err := p.ask(ctx, stepPatience, "info")
	if err != nil {
		return "", err
	}
	r, err := s.read()
	if err != nil {
		return "", err
	}
	limit := s.claim.limitBytes
	figures := fmt.Sprintf("total %s, free %s, cuDeviceTotalMem %s, under a limit of %s; %s", size(info.Total), size(info.Free),
		size(info.Device), size(limit), r)
	if info.Total != limit || info.Device != limit || info.Free != limit-min(r.counted, limit) {
		return "", errors.New(figures)
	}
	return figures, nil
}

func (c *checker) checkPinned(ctx context.Context, s *scene) (string, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.read()
	if err != nil {
		return "", err
	}
	e, err := p.ask(ctx, stepPatience, "pinned %d", 64*mib)
	if err != nil {
		return "", err
	}
	if e.Result != 0 {
		return "", fmt.Errorf("cuMemHostAlloc: %s", e.Name)
	}
	after, err := s.read()
	if err == nil && after.counted != before.counted {
		err = fmt.Errorf("64 MiB of pinned host memory counted as %s of the GPU's", signed(delta(after.counted, before.counted)))
	}
	return fmt.Sprintf("64 MiB pinned: counted %s, physically %s", signed(delta(after.counted, before.counted)),
		signed(delta(after.physical(), before.physical()))), err
}

// half is what one of two processes takes.
func (s *scene) half() uint64 {
	return (s.claim.limitBytes - 2*s.c.machine.contextBytes) / 2 / granularity * granularity
}

// pair is a process with half of the limit and one with all the rest.
func (s *scene) pair(ctx context.Context) (first, second *child, err error) {
	if first, err = s.enter(ctx); err == nil {
		err = s.take(ctx, first, s.half())
	}
	if err == nil {
		second, err = s.enter(ctx)
	}
	if err == nil {
		err = s.fill(ctx, second)
	}
	return first, second, err
}

func (c *checker) checkTwo(ctx context.Context, s *scene) (string, error) {
	first, _, err := s.pair(ctx)
	if err != nil {
		return "", err
	}
	r, err := s.within()
	if err != nil {
		return "", err
	}
	e, err := first.ask(ctx, stepPatience, "take %d", 64*mib)
	if err == nil && e.Result != outOfMemory {
		err = fmt.Errorf("the first process asks for more: %s (%d), not CUDA_ERROR_OUT_OF_MEMORY", e.Name, e.Result)
	}
	return fmt.Sprintf("limit %s; %s", size(s.claim.limitBytes), r), err
}

func (c *checker) checkKilled(ctx context.Context, s *scene) (string, error) {
	first, second, err := s.pair(ctx)
	if err != nil {
		return "", err
	}
	began := time.Now()
	first.kill()
	// The driver takes the memory of a dead process back when it comes to it.
	const patience = 10 * time.Second
	for {
		if err = s.take(ctx, second, s.half()); err == nil || time.Since(began) > patience {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return "", fmt.Errorf("%v after the first was killed: %w", patience, err)
	}
	took := time.Since(began)
	r, err := s.within()
	if err != nil {
		return "", err
	}
	second.kill()
	if err := s.gone(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("the other had it after %v; %s", took.Round(time.Millisecond), r), nil
}

// gone waits until nothing is counted and NVML shows none of the processes.
func (s *scene) gone(ctx context.Context) error {
	const patience = 10 * time.Second
	began := time.Now()
	for {
		now, err := s.c.watcher.sample()
		if err != nil {
			return err
		}
		counted, err := s.claim.countedBytes()
		if err != nil {
			return err
		}
		shown := 0
		for _, p := range s.all {
			if _, yes := now.bytesOf(p.pid()); yes {
				shown++
			}
		}
		switch {
		case counted == 0 && shown == 0:
			return nil
		case ctx.Err() != nil || time.Since(began) > patience:
			return fmt.Errorf("%v after all were dead %s are counted, and NVML shows %d of the processes", patience, size(counted),
				shown)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *checker) checkExit(ctx context.Context, s *scene) (string, error) {
	p, err := s.enter(ctx)
	if err == nil {
		err = s.fill(ctx, p)
	}
	if err != nil {
		return "", err
	}
	p.tell("exit")
	if !p.waitEnded() {
		return "", errors.New("the process does not end")
	}
	return "", s.gone(ctx)
}

func (c *checker) checkStopped(ctx context.Context, s *scene) (string, error) {
	first, second, err := s.pair(ctx)
	if err != nil {
		return "", err
	}
	if err := syscall.Kill(first.pid(), syscall.SIGSTOP); err != nil {
		return "", err
	}
	defer func() { _ = syscall.Kill(first.pid(), syscall.SIGCONT) }()
	began := time.Now()
	e, err := second.ask(ctx, stepPatience, "take %d", 64*mib)
	if err == nil && e.Result != outOfMemory {
		err = fmt.Errorf("64 MiB more: %s (%d), not CUDA_ERROR_OUT_OF_MEMORY", e.Name, e.Result)
	}
	if err == nil {
		_, err = second.ask(ctx, stepPatience, "give")
	}
	if err == nil {
		err = s.take(ctx, second, granularity)
	}
	took := time.Since(began)
	if err == nil && took > time.Second {
		err = fmt.Errorf("refusing, freeing and taking took %v", took)
	}
	return fmt.Sprintf("refusing, freeing and taking took %v", took.Round(time.Microsecond)), err
}

func (c *checker) checkNothingLeft(ctx context.Context, s *scene) (string, error) {
	first, err := s.enter(ctx)
	if err == nil {
		err = s.fill(ctx, first)
	}
	if err != nil {
		return "", err
	}
	_, err = s.enter(ctx)
	if err == nil {
		return "", errors.New("it got a context all the same")
	}
	last := s.all[len(s.all)-1]
	last.waitEnded()
	if status, ok := last.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "", fmt.Errorf("the process died of signal %d", status.Signal())
	}
	_, err = s.within()
	return "it says" + last.errs.said(), err
}

func (c *checker) checkNeighbour(ctx context.Context, s *scene) (string, error) {
	mine, err := s.enter(ctx)
	if err == nil {
		err = s.fill(ctx, mine)
	}
	if err != nil {
		return "", err
	}
	other, err := c.newScene(ctx, s.name)
	if err != nil {
		return "", err
	}
	defer other.close()
	neighbour, err := other.enter(ctx)
	if err == nil {
		err = other.fill(ctx, neighbour)
	}
	if err != nil {
		return "", fmt.Errorf("the other: %w", err)
	}
	a, err := s.within()
	if err != nil {
		return "", err
	}
	b, err := other.within()
	return fmt.Sprintf("the one: %s; the other: %s", a, b), err
}
