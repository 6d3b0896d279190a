package mps

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// watch keeps a GPU's daemon running.
type watch struct {
	manager *Manager
	uuid    string
	cancel  context.CancelFunc
	ctx     context.Context
	ended   chan struct{}

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
	pausing
	left
)

func newWatch(m *Manager, uuid string) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	return &watch{
		manager: m, uuid: uuid, ctx: ctx, cancel: cancel, ended: make(chan struct{}), turned: make(chan struct{}),
		now: Status{Reason: "it is being started"},
	}
}

// run starts the daemon again and again, until the watch is left.
func (w *watch) run() {
	defer close(w.ended)
	defer w.turn(left, Status{Reason: "nobody watches it"})
	pause := w.manager.timing.firstPause
	for w.ctx.Err() == nil {
		began := time.Now()
		daemon, err := w.manager.start(w.ctx, w.uuid)
		if err != nil {
			if w.ctx.Err() != nil {
				return
			}
			w.fail(err.Error())
		} else {
			w.turn(running, Status{Running: true, OneUser: daemon.oneUser})
			ended := daemon.wait(w.ctx)
			daemon.leave()
			if !ended {
				return
			}
			reason := daemon.exit()
			w.fail(reason)
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
		case pausing, left:
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
