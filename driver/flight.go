package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	nstructs "github.com/hashicorp/nomad/nomad/structs"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/internal/keylock"
)

// imageState is what the driver keeps in mind about images. The zero value is ready.
type imageState struct {
	flights   flights
	unpacking keylock.Locks
	pace      pullPace
	collector *imageCollector // nil where images are not collected
	// tending starts tendImages.
	tending sync.Once
}

// flights are the fetches that are under way.
type flights struct {
	mu    sync.Mutex
	byKey map[flightKey]*flight
}

// flightKey is all that tasks must agree in to share a fetch. Whose credentials differ must not fail by those of others;
// containerd still fetches each layer once.
type flightKey struct {
	reference, platform string
	force, authSoftFail bool
	auth                AuthConfig
}

// flight is one fetch of an image for all tasks that want it: it looks in containerd and asks the registry if need be. It
// belongs to none of them, so that the end of one, its deadline included, does not touch the others; when nobody waits
// any more, it ends.
type flight struct {
	key    flightKey
	source imageSource
	// options are those of the task that began; all that the fetch takes from them is in key too.
	options *TaskConfig
	cancel  context.CancelFunc

	// Guarded by flights.mu.
	passengers []*startup
	pulling    bool
	progress   *progress

	// image and err are the outcome, once landed is closed.
	landed chan struct{}
	image  containerd.Image
	err    error
}

// fetch returns the image that a reference names: from containerd where it has it, else from the registry.
func (d *Driver) fetch(ctx context.Context, s *startup, source imageSource) (containerd.Image, error) {
	timeout := s.options.pullTimeout(&d.config)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := d.board(s, source)
	select {
	case <-f.landed:
		return f.image, f.err
	case <-ctx.Done():
	}
	d.leave(f, s)
	if d.ctx.Err() != nil {
		return nil, fmt.Errorf("pull image %q: the plugin is shutting down: %w", source.given, ctx.Err())
	}
	return nil, nstructs.NewRecoverableError(fmt.Errorf("pull image %q: not done after %s%s: %w; raise image_pull_timeout "+
		"if the image is large or the registry slow", source.given, timeout, f.fetched(d), ctx.Err()), true)
}

// board has the task wait for the fetch of its image, which begins if there is none under way.
func (d *Driver) board(s *startup, source imageSource) *flight {
	key := flightKey{
		reference:    source.reference,
		platform:     s.options.Platform,
		force:        s.options.ForcePull,
		authSoftFail: s.options.AuthSoftFail,
		auth:         s.options.Auth,
	}
	all := &d.images.flights
	all.mu.Lock()
	f := all.byKey[key]
	if f == nil {
		ctx, cancel := context.WithCancel(d.client.Context())
		f = &flight{key: key, source: source, options: s.options, cancel: cancel, landed: make(chan struct{})}
		if all.byKey == nil {
			all.byKey = map[flightKey]*flight{}
		}
		all.byKey[key] = f
		d.client.Go(func() { d.fly(ctx, f) })
	}
	f.passengers = append(f.passengers, s)
	pulling := f.pulling
	all.mu.Unlock()
	if pulling {
		d.sayPulling(s, f)
	}
	return f
}

// fly does the fetch and tells everybody who waits.
func (d *Driver) fly(ctx context.Context, f *flight) {
	defer f.cancel()
	f.image, f.err = d.obtain(ctx, f)
	d.images.flights.forget(f)
	close(f.landed)
}

// forget has whoever comes from now on begin anew.
func (a *flights) forget(f *flight) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byKey[f.key] == f {
		delete(a.byKey, f.key)
	}
}

// leave has the task wait no longer. The last one ends the fetch, and stays until it has put away what it brought.
func (d *Driver) leave(f *flight, s *startup) {
	all := &d.images.flights
	all.mu.Lock()
	f.passengers = slices.DeleteFunc(f.passengers, func(other *startup) bool { return other == s })
	last := len(f.passengers) == 0
	all.mu.Unlock()
	if !last {
		return
	}
	all.forget(f)
	f.cancel()
	select {
	case <-f.landed:
	case <-d.ctx.Done():
	}
}

// obtain looks for the image in containerd, and asks the registry where it must.
func (d *Driver) obtain(ctx context.Context, f *flight) (containerd.Image, error) {
	if f.key.force {
		return d.pull(ctx, f)
	}
	found, unpacked, err := d.findImage(ctx, f.source, f.options.platform())
	switch {
	case errdefs.IsNotFound(err):
		return d.pull(ctx, f)
	case err != nil:
		return nil, d.client.Recoverable(fmt.Errorf("look for image %q in containerd: %w", f.source.given, err))
	}
	if !unpacked {
		err = d.unpack(ctx, f.source, found)
	}
	if errdefs.IsNotFound(err) {
		return d.pull(ctx, f) // A part of it was removed meanwhile.
	}
	if err != nil || !f.source.latest() || found.Labels()[naming.Owned] != PluginName {
		return found, err
	}
	// As with docker, the tag latest means what is the latest now. Without an answer, what is there will do.
	newer, err := d.pull(ctx, f)
	if err != nil {
		d.tell(f, "Using the image %s that is there: %v", f.source.reference, err)
		return found, nil //nolint:nilerr // told
	}
	return newer, nil
}

// tell emits a task event for every task that waits for the image.
func (d *Driver) tell(f *flight, format string, args ...any) {
	d.images.flights.mu.Lock()
	passengers := slices.Clone(f.passengers)
	d.images.flights.mu.Unlock()
	for _, s := range passengers {
		d.say(s.cfg, map[string]string{"image": f.source.reference}, format, args...)
	}
}

// startPulling tells every task that waits, and each that will, that the registry is asked.
func (d *Driver) startPulling(f *flight, p *progress) {
	d.images.flights.mu.Lock()
	f.pulling, f.progress = true, p
	passengers := slices.Clone(f.passengers)
	d.images.flights.mu.Unlock()
	for _, s := range passengers {
		d.sayPulling(s, f)
	}
}

func (d *Driver) sayPulling(s *startup, f *flight) {
	d.say(s.cfg, map[string]string{"image": f.source.reference}, "Pulling image %s", f.source.reference)
}

// fetched says in brackets how much has come, for messages.
func (f *flight) fetched(d *Driver) string {
	d.images.flights.mu.Lock()
	defer d.images.flights.mu.Unlock()
	if f.progress == nil {
		return ""
	}
	return " (" + f.progress.state().String() + ")"
}
