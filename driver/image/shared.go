package image

import (
	"context"
	"fmt"
	"slices"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/recoverable"
)

// pulls are the shared pulls in progress. The zero value is ready.
type pulls struct {
	mu    sync.Mutex
	byKey map[pullKey]*pull
}

// pullKey is all that requests must have in common to share a pull. Requests with other credentials must not fail by
// these; containerd still fetches each layer once.
type pullKey struct {
	reference, platform string
	force, authSoftFail bool
	auth                Auth
}

// pull obtains one image for all requests that wait for it: it looks in containerd, and pulls from the registry if need
// be. It belongs to none of the requests, so that the end of one, by its deadline for example, does not touch the others.
// It ends when nobody waits any more.
type pull struct {
	key    pullKey
	source imageSource
	// options are those of the first request; all that the pull takes from them is in key too.
	options Options
	cancel  context.CancelFunc

	// pulls.mu guards these. progress is nil until the registry is asked.
	waiters  []*Request
	progress *progress

	// image and err are the outcome, once done is closed.
	done  chan struct{}
	image containerd.Image
	err   error
}

// fetch returns the image of a reference: from containerd where it has it, else from the registry.
func (s *Store) fetch(ctx context.Context, r *Request, source imageSource) (containerd.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, r.PullTimeout)
	defer cancel()
	p := s.join(r, source)
	select {
	case <-p.done:
		return p.image, p.err
	case <-ctx.Done():
	}
	s.leave(p, r)
	if s.client.Context().Err() != nil {
		return nil, fmt.Errorf("pull image %q: the plugin is shutting down: %w", source.given, ctx.Err())
	}
	return nil, recoverable.Error(fmt.Errorf("pull image %q: not done after %s%s: %w; raise image_pull_timeout "+
		"if the image is large or the registry slow", source.given, r.PullTimeout, s.fetched(p), ctx.Err()))
}

// join adds the request to the waiters of the pull of its image, which starts if there is none.
func (s *Store) join(r *Request, source imageSource) *pull {
	key := pullKey{
		reference:    source.reference,
		platform:     r.Platform,
		force:        r.ForcePull,
		authSoftFail: r.AuthSoftFail,
		auth:         r.Auth,
	}
	s.pulls.mu.Lock()
	p := s.pulls.byKey[key]
	if p == nil {
		ctx, cancel := context.WithCancel(s.client.Context())
		p = &pull{key: key, source: source, options: r.Options, cancel: cancel, done: make(chan struct{})}
		if s.pulls.byKey == nil {
			s.pulls.byKey = map[pullKey]*pull{}
		}
		s.pulls.byKey[key] = p
		s.client.Go(func() { s.run(ctx, p) })
	}
	p.waiters = append(p.waiters, r)
	pulling := p.progress != nil
	s.pulls.mu.Unlock()
	if pulling {
		s.notifyPulling(r, p)
	}
	return p
}

// run obtains the image and publishes the outcome.
func (s *Store) run(ctx context.Context, p *pull) {
	defer p.cancel()
	p.image, p.err = s.obtain(ctx, p)
	s.pulls.remove(p)
	close(p.done)
}

// remove makes later requests start a new pull.
func (a *pulls) remove(p *pull) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byKey[p.key] == p {
		delete(a.byKey, p.key)
	}
}

// leave removes the request from the waiters. The last one ends the pull, and blocks until it has removed what it fetched.
func (s *Store) leave(p *pull, r *Request) {
	s.pulls.mu.Lock()
	p.waiters = slices.DeleteFunc(p.waiters, func(other *Request) bool { return other == r })
	last := len(p.waiters) == 0
	s.pulls.mu.Unlock()
	if !last {
		return
	}
	s.pulls.remove(p)
	p.cancel()
	select {
	case <-p.done:
	case <-s.client.Context().Done():
	}
}

// obtain looks for the image in containerd, and pulls it where it must.
func (s *Store) obtain(ctx context.Context, p *pull) (containerd.Image, error) {
	if p.key.force {
		return s.pull(ctx, p)
	}
	found, unpacked, err := s.find(ctx, p.source, p.options.platform())
	switch {
	case errdefs.IsNotFound(err):
		return s.pull(ctx, p)
	case err != nil:
		return nil, s.client.Recoverable(fmt.Errorf("look for image %q in containerd: %w", p.source.given, err))
	}
	if !unpacked {
		err = s.unpack(ctx, p.source, found)
	}
	if errdefs.IsNotFound(err) {
		return s.pull(ctx, p) // A part of it was removed meanwhile.
	}
	if err != nil || !p.source.latest() || found.Labels()[naming.Owned] != naming.PluginName {
		return found, err
	}
	// As with docker, the tag latest means what is the latest now. If the registry does not answer, the image that is
	// there is used.
	newer, err := s.pull(ctx, p)
	if err != nil {
		s.notifyWaiters(p, "Using the image %s that is there: %v", p.source.reference, err)
		return found, nil //nolint:nilerr // the waiters are notified
	}
	return newer, nil
}

// notifyWaiters emits a task event for every task that waits for the image.
func (s *Store) notifyWaiters(p *pull, format string, args ...any) {
	for _, r := range s.waiters(p) {
		s.config.Notify(r.Task, map[string]string{"image": p.source.reference}, format, args...)
	}
}

func (s *Store) waiters(p *pull) []*Request {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	return slices.Clone(p.waiters)
}

// startPulling notifies every task that waits, and each that will, that the image comes from the registry.
func (s *Store) startPulling(p *pull, prog *progress) {
	s.pulls.mu.Lock()
	p.progress = prog
	s.pulls.mu.Unlock()
	for _, r := range s.waiters(p) {
		s.notifyPulling(r, p)
	}
}

func (s *Store) notifyPulling(r *Request, p *pull) {
	s.config.Notify(r.Task, map[string]string{"image": p.source.reference}, "Pulling image %s", p.source.reference)
}

// fetched returns how much has been fetched, in brackets, for messages.
func (s *Store) fetched(p *pull) string {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	if p.progress == nil {
		return ""
	}
	return " (" + p.progress.state().String() + ")"
}
