package mps

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watch keeps a GPU's daemon running.
type watch struct {
	manager *Manager
	uuid    string
	cancel  context.CancelFunc
	ctx     context.Context
	ended   chan struct{}
	// checks are requests to ask the daemon whether it still answers. Each channel is closed when the status says so.
	checks chan chan struct{}
	// identity is that of the daemon that was started last. Its file may be removed while it runs.
	identity identity

	mu    sync.Mutex
	phase phase
	now   Status
	// turned is closed when the phase changes.
	turned chan struct{}
}

// phase is where a daemon's life is.
type phase int

const (
	starting phase = iota
	running
	closing // it has clients, but new ones don't get in
	pausing
	left
)

func newWatch(m *Manager, uuid string) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	return &watch{
		manager: m, uuid: uuid, ctx: ctx, cancel: cancel, ended: make(chan struct{}), turned: make(chan struct{}),
		checks: make(chan chan struct{}),
		now:    Status{Reason: "it is being started"},
	}
}

// run starts the daemon again and again, until the watch is left.
func (w *watch) run() {
	defer close(w.ended)
	defer w.turn(left, Status{Reason: "nobody watches it"})
	pause := w.manager.timing.firstPause
	for w.ctx.Err() == nil {
		began := time.Now()
		daemon, err := w.manager.start(w.ctx, w.uuid, w.identity)
		if err != nil {
			if w.ctx.Err() != nil {
				return
			}
			w.fail(err.Error())
		} else {
			reason := w.serve(daemon)
			daemon.leave()
			if reason == "" {
				return
			}
			if time.Since(began) >= w.manager.timing.ranWell {
				pause = w.manager.timing.firstPause
				w.turn(starting, Status{Reason: reason + "; it is being started again"})
				continue
			}
		}
		if !sleep(w.ctx, pause) {
			return
		}
		pause = min(2*pause, w.manager.timing.longestPause)
		w.turn(starting, Status{Reason: w.status().Reason})
	}
}

// endsWithin is how long after its sockets a daemon that quits is gone itself.
const endsWithin = 100 * time.Millisecond

// serve returns when the daemon has ended or does not answer any more, and says which. The reason is empty if the watch was
// left. A daemon that lives but whose sockets were removed, as those do that clean up /run, is seen by the removal.
func (w *watch) serve(p *process) (reason string) {
	w.identity, _ = w.manager.dirs(w.uuid).readIdentity()
	removed, stop := w.watchPipe()
	defer stop()
	var checked chan struct{}
	for {
		reason = w.check(p)
		if reason != "" && w.ctx.Err() == nil {
			w.fail(reason)
		}
		if checked != nil {
			close(checked)
			checked = nil
		}
		if reason != "" {
			return reason
		}
		select {
		case <-p.ended:
		case <-w.ctx.Done():
			return ""
		case <-removed:
		case checked = <-w.checks:
		}
	}
}

// check asks the daemon through its socket, and notes whether new clients get in. It returns why it has to be replaced.
func (w *watch) check(p *process) (reason string) {
	daemon, err := w.manager.control(w.uuid)
	var closedFor []int
	if err == nil {
		closedFor, err = w.manager.open(w.ctx, w.uuid, daemon)
	}
	switch {
	case err != nil:
		select {
		case <-p.ended:
			return p.exit()
		case <-time.After(endsWithin):
			return err.Error()
		}
	case len(closedFor) > 0:
		w.turn(closing, Status{Reason: "its socket for clients is gone; it is replaced when its clients have ended: " + listProcesses(closedFor)})
	default:
		w.turn(running, Status{Running: true, OneUser: p.oneUser})
	}
	return ""
}

func listProcesses(pids []int) string {
	names := make([]string, 0, len(pids))
	for _, pid := range pids {
		names = append(names, "process "+strconv.Itoa(pid))
	}
	return strings.Join(names, ", ")
}

// watchPipe tells when something is removed from the daemon's directory. Where that cannot be watched, it is left to Ensure
// to have the daemon asked.
func (w *watch) watchPipe() (removed <-chan struct{}, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, func() {}
	}
	_ = watcher.Add(w.manager.dirs(w.uuid).pipe())
	tell := make(chan struct{}, 1)
	go func() {
		for event := range watcher.Events {
			if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
				select {
				case tell <- struct{}{}:
				default: // it is to be asked anyway
				}
			}
		}
	}()
	return tell, func() { watcher.Close() }
}

// recheck has a daemon that runs be asked whether it still answers. What comes of it, wait tells.
func (w *watch) recheck(ctx context.Context) {
	w.mu.Lock()
	phase, turned := w.phase, w.turned
	w.mu.Unlock()
	if phase != running && phase != closing {
		return
	}
	checked := make(chan struct{})
	select {
	case w.checks <- checked:
		select {
		case <-checked:
		case <-ctx.Done():
		}
	case <-turned:
	case <-w.ended:
	case <-ctx.Done():
	}
}

func (w *watch) fail(reason string) {
	d := w.manager.dirs(w.uuid)
	d.withdraw()
	w.manager.options.Logger.Error("the MPS control daemon of a GPU does not run", "gpu", w.uuid, "reason", reason,
		"printed_last", tail(d.output()))
	w.turn(pausing, Status{Reason: reason})
}

// turn notes a new phase and tells of it.
func (w *watch) turn(to phase, now Status) {
	w.mu.Lock()
	tell := now != w.now
	w.phase, w.now = to, now
	close(w.turned)
	w.turned = make(chan struct{})
	w.mu.Unlock()
	if tell {
		w.manager.notify()
	}
}

func (w *watch) status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// wait returns when the daemon runs, or could not be started.
func (w *watch) wait(ctx context.Context) error {
	for {
		w.mu.Lock()
		phase, now, turned := w.phase, w.now, w.turned
		w.mu.Unlock()
		switch phase {
		case running:
			return nil
		case closing, pausing, left:
			return &DownError{GPUUUID: w.uuid, Reason: now.Reason}
		case starting:
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return fmt.Errorf("wait for the MPS control daemon of GPU %s: %w", w.uuid, ctx.Err())
		}
	}
}

// leave ends the watch, and leaves the daemon alone.
func (w *watch) leave() {
	w.cancel()
	<-w.ended
}

// sleep is false if the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
