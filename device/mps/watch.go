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
	// checks are requests to check whether the daemon still answers. Each channel is closed when the status is up to date.
	checks chan chan struct{}
	// identity is that of the daemon that was started last. Somebody may remove its file while it runs.
	identity identity

	mu    sync.Mutex
	phase phase
	now   Status
	// changed is closed when the phase changes.
	changed chan struct{}
}

// phase is the phase of a daemon.
type phase int

const (
	starting phase = iota
	running
	closing // it has clients, but accepts no new ones
	pausing
	left
)

func newWatch(m *Manager, uuid string) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	return &watch{
		manager: m, uuid: uuid, ctx: ctx, cancel: cancel, ended: make(chan struct{}), changed: make(chan struct{}),
		checks: make(chan chan struct{}),
		now:    Status{Reason: "it is being started"},
	}
}

// run restarts the daemon whenever it ends, until the watch ends.
func (w *watch) run() {
	defer close(w.ended)
	defer w.set(left, Status{Reason: "it is not watched"})
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
				w.set(starting, Status{Reason: reason + "; it is being started again"})
				continue
			}
		}
		if !sleep(w.ctx, pause) {
			return
		}
		pause = min(2*pause, w.manager.timing.longestPause)
		w.set(starting, Status{Reason: w.status().Reason})
	}
}

// quitDelay is how long a daemon that quits runs on after its sockets are gone.
const quitDelay = 100 * time.Millisecond

// serve returns when the daemon has ended or does not answer any more, with the reason; it is empty if the watch has ended.
// A running daemon whose sockets were removed, by a cleanup of /run for example, is noticed by the removal.
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

// check queries the daemon through its socket, and records whether it accepts new clients. It returns why the daemon has
// to be replaced; empty if it has not.
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
		case <-time.After(quitDelay):
			return err.Error()
		}
	case len(closedFor) > 0:
		w.set(closing, Status{Reason: "its socket for clients is gone; it is replaced when its clients have ended: " + listProcesses(closedFor)})
	default:
		w.set(running, Status{Running: true, OneUser: p.OneUser, Namespaces: p.V3})
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

// watchPipe returns a channel that receives a value when something is removed from the daemon's directory. If it cannot be
// watched, only Ensure has the daemon checked.
func (w *watch) watchPipe() (removed <-chan struct{}, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, func() {}
	}
	_ = watcher.Add(w.manager.dirs(w.uuid).pipe())
	removals := make(chan struct{}, 1)
	go collectRemovals(watcher.Events, watcher.Errors, removals)
	return removals, func() { watcher.Close() }
}

// collectRemovals sends a value for removals until the channels are closed. An error means that events were lost, and counts as one.
func collectRemovals(events <-chan fsnotify.Event, lost <-chan error, removals chan<- struct{}) {
	for {
		select {
		case event, open := <-events:
			if !open {
				return
			}
			if !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
				continue
			}
		case _, open := <-lost:
			if !open {
				return
			}
		}
		select {
		case removals <- struct{}{}:
		default: // a value is waiting already
		}
	}
}

// recheck has a running daemon checked. Its outcome is returned by wait.
func (w *watch) recheck(ctx context.Context) {
	w.mu.Lock()
	phase, changed := w.phase, w.changed
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
	case <-changed:
	case <-w.ended:
	case <-ctx.Done():
	}
}

func (w *watch) fail(reason string) {
	d := w.manager.dirs(w.uuid)
	d.withdraw()
	w.manager.options.Logger.Error("the MPS control daemon of a GPU does not run", "gpu", w.uuid, "reason", reason,
		"printed_last", tail(d.output()))
	w.set(pausing, Status{Reason: reason})
}

// set sets the phase and the status, and notifies of changes of the status.
func (w *watch) set(to phase, now Status) {
	w.mu.Lock()
	notify := now != w.now
	w.phase, w.now = to, now
	close(w.changed)
	w.changed = make(chan struct{})
	w.mu.Unlock()
	if notify {
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
		phase, now, changed := w.phase, w.now, w.changed
		w.mu.Unlock()
		switch phase {
		case running:
			return nil
		case closing, pausing, left:
			return &DownError{GPUUUID: w.uuid, Reason: now.Reason}
		case starting:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the MPS control daemon of GPU %s: %w", w.uuid, ctx.Err())
		}
	}
}

// leave ends the watch. The daemon continues running.
func (w *watch) leave() {
	w.cancel()
	<-w.ended
}

// sleep pauses, and returns false if the context ended first.
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
