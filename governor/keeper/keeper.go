// Package keeper starts a node's governor and watches it, unless another one runs already, of systemd for example. A governor
// continues when its keeper ends, since the tasks that it governs do; the next keeper takes it over.
package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/filelock"
)

const (
	// look is how often a governor is looked at.
	look = 250 * time.Millisecond
	// startWithin is how long a governor may take until it publishes its status for the first time.
	startWithin = 20 * time.Second
	// firstPause and longestPause are between two starts of governors that end by themselves.
	firstPause, longestPause = 100 * time.Millisecond, 30 * time.Second
)

// Starting is the Problem of a Keeper whose governor is being started for the first time.
const Starting = "the governor is being started"

// Options configure a Keeper.
type Options struct {
	// Program is the command tranche, whose command governor is run.
	Program                      string
	RunDir, StateDir, DriverRoot string
	Logger                       hclog.Logger
	// Changed is called when Problem has changed.
	Changed func()
	// HungAfter is the age of the status from which a governor counts as hung and is replaced; 0 means status.StaleAfter.
	HungAfter time.Duration
}

// Keeper keeps a governor running. Make one with New.
type Keeper struct {
	Options
	mu      sync.Mutex
	problem string
}

// New returns a Keeper that has started nothing.
func New(o Options) *Keeper {
	if o.HungAfter == 0 {
		o.HungAfter = status.StaleAfter
	}
	return &Keeper{Options: o, problem: Starting}
}

// Problem returns why no governor runs; empty if one does.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

func (k *Keeper) setProblem(text string) {
	k.mu.Lock()
	changed := k.problem != text
	k.problem = text
	k.mu.Unlock()
	if !changed {
		return
	}
	if text != "" {
		k.Logger.Warn("no governor runs, so shares of compute do not hold", "reason", text)
	} else {
		k.Logger.Info("the governor runs")
	}
	k.Changed()
}

// Run keeps a governor running until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	k.upgrade(ctx)
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		problem := k.once(ctx)
		if ctx.Err() != nil {
			return
		}
		k.setProblem(problem)
		if time.Since(began) > longestPause {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// once watches the governor that runs, or starts one and watches that, until it has ended. It returns why it has.
func (k *Keeper) once(ctx context.Context) string {
	held, err := held(k.lockFile())
	if err != nil {
		return err.Error()
	}
	if held {
		k.watch(ctx, time.Now(), nil)
		return "the governor has ended"
	}
	began := time.Now()
	child, err := k.start()
	if err != nil {
		return fmt.Sprintf("start %s: %v; it must be beside the device plugin or in /usr/bin", k.Program, err)
	}
	k.watch(ctx, began, child)
	if ctx.Err() != nil {
		return ""
	}
	return fmt.Sprintf("the governor has ended (%v): %s", <-child.ended, lastLine(k.logFile()))
}

// upgrade ends the governor that runs, so that another is started, if a keeper has started it and its program was replaced since.
func (k *Keeper) upgrade(ctx context.Context) {
	g, err := Find(k.RunDir, k.Program)
	if err != nil || g == nil || !g.Kept || g.Runs(k.Program) {
		return
	}
	if _, err := os.Stat(k.Program); err != nil {
		return
	}
	k.Logger.Info("the governor runs a program that was replaced: it ends, and another is started", "pid", g.PID)
	if err := g.Stop(ctx); err != nil {
		k.Logger.Warn("cannot end the governor", "error", err)
	}
}

// watch returns when the governor has ended or the context has. The child is nil for a governor that another process has started.
func (k *Keeper) watch(ctx context.Context, began time.Time, c *child) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.done():
			return
		case <-ticker.C:
		}
		if running, err := held(k.lockFile()); c == nil && err == nil && !running {
			return
		}
		published, err := status.Read(k.RunDir)
		switch {
		case err == nil && published != nil && time.Since(published.Written) <= k.HungAfter && (c == nil || published.Written.After(began)):
			k.setProblem("")
		case time.Since(began) > k.patience(c):
			k.setProblem(k.replace(c))
		}
	}
}

// patience is how long a governor may take until it publishes.
func (k *Keeper) patience(c *child) time.Duration {
	if c == nil {
		return k.HungAfter
	}
	return max(startWithin, k.HungAfter)
}

// replace kills a governor that hangs, and returns what the problem is.
func (k *Keeper) replace(c *child) string {
	const problem = "the governor does not answer"
	if c != nil {
		k.Logger.Error("the governor hangs and is killed", "pid", c.process.Pid)
		_ = c.process.Kill() // it may have ended
		return problem
	}
	g, err := Find(k.RunDir, k.Program)
	switch {
	case err != nil:
		return err.Error()
	case g == nil:
		return fmt.Sprintf("%s has locked %s and is no governor: end it", filelock.Holder(k.lockFile()), k.lockFile())
	}
	k.Logger.Error("the governor hangs and is killed", "pid", g.PID)
	if err := g.Signal(syscall.SIGKILL); err != nil {
		return fmt.Sprintf("%s: %v", problem, err)
	}
	return problem
}

func (k *Keeper) dir() string      { return filepath.Join(k.RunDir, status.Dir) }
func (k *Keeper) lockFile() string { return filepath.Join(k.dir(), status.LockFile) }
func (k *Keeper) logFile() string  { return filepath.Join(k.dir(), status.LogFile) }
