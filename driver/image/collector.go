package image

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
)

const (
	// collectorGrace is how long a new plugin process removes nothing: Nomad is just starting its tasks again.
	collectorGrace = time.Minute
	// collectorRetry is after what time an image is tried again that was not removed, since a task with it was starting.
	collectorRetry = 5 * time.Second
	// collectorSettle is what the collector waits for more tasks to end, so that a job of many is one sweep.
	collectorSettle = time.Second
)

// collector removes images that the driver has pulled and that no task has used for a while. An image that another
// program put into the namespace does not have our label and is left alone.
type collector struct {
	store   *Store
	delay   time.Duration
	grace   time.Duration
	retry   time.Duration
	settle  time.Duration
	started time.Time
	wake    chan struct{}

	mu sync.Mutex
	// lastUse is when an image was last in use, as far as this plugin process knows.
	lastUse map[string]time.Time
}

func newCollector(s *Store, delay time.Duration) *collector {
	return &collector{
		store:   s,
		delay:   delay,
		grace:   min(delay, collectorGrace),
		retry:   min(delay, collectorRetry),
		settle:  min(delay, collectorSettle),
		started: time.Now(),
		wake:    make(chan struct{}, 1),
		lastUse: map[string]time.Time{},
	}
}

// noteUse notes that a task used the image.
func (c *collector) noteUse(image string, at time.Time) {
	source, err := parseImage(image)
	if err != nil || source.reference == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.lastUse[source.reference]) {
		c.lastUse[source.reference] = at
	}
}

func (c *collector) lastUseOf(reference string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastUse[reference]
}

func (c *collector) removeUse(reference string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lastUse, reference)
}

// unusedSince returns since when an image that no task uses has been unused.
func (c *collector) unusedSince(record images.Image) time.Time {
	since := c.lastUseOf(record.Name)
	noted, err := time.Parse(time.RFC3339Nano, record.Labels[naming.UnusedSince])
	if err == nil && noted.After(since) {
		return noted
	}
	if since.IsZero() {
		// It is not known, so it is unused from now on.
		since = time.Now()
		c.noteUse(record.Name, since)
	}
	return since
}

// due is how long the image stays.
func (c *collector) due(since time.Time) time.Duration {
	return max(time.Until(since.Add(c.delay)), time.Until(c.started.Add(c.grace)))
}

// run removes images that are no longer used, until the client is closed.
func (c *collector) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.store.client.Context().Done():
			return
		case <-timer.C:
		case <-c.wake:
			if !c.store.client.Pause(c.settle) {
				return
			}
		}
		next, err := c.sweep()
		if err != nil {
			c.store.config.Logger.Debug("images that no task uses could not be removed; trying again", "error", err)
			next = max(c.delay, collectorRetry)
		}
		timer.Reset(next)
	}
}

// sweep removes the images that are due, and returns how long it is until the next sweep.
func (c *collector) sweep() (time.Duration, error) {
	ctx, cancel := c.store.client.Call()
	defer cancel()
	ours, err := c.store.client.ImageService().List(ctx, fmt.Sprintf("labels.%q==%q", naming.Owned, naming.PluginName))
	if err != nil {
		return 0, fmt.Errorf("list images: %w", err)
	}
	used, err := c.imagesInUse(ctx)
	if err != nil {
		return 0, err
	}
	// Containers may be removed without a NoteEnd: by hand, or once containerd is back.
	next := max(c.delay, collectorRetry)
	for _, record := range ours {
		if used[record.Name] {
			c.noteUse(record.Name, time.Now())
			continue
		}
		since := c.unusedSince(record)
		wait := c.due(since)
		if wait <= 0 {
			if wait, err = c.remove(ctx, record, since); err != nil {
				return 0, err
			}
		} else if err := c.noteUnused(ctx, record, since); err != nil {
			return 0, err
		}
		next = min(next, max(wait, time.Millisecond))
	}
	return next, nil
}

// imagesInUse returns the names of the images of all containers in the namespace, whoever made them, and of all tasks that
// are being started, by this agent or another: the lease of a start names its image.
func (c *collector) imagesInUse(ctx context.Context) (map[string]bool, error) {
	// First, since a start that ends now has a container afterwards.
	starting, err := c.store.client.LeasesService().List(ctx, naming.Filter(naming.Owned, naming.PluginName))
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	used := map[string]bool{}
	for _, lease := range starting {
		source, err := parseImage(lease.Labels[naming.Image])
		if err == nil && !client.OwnerDied(lease.Labels[naming.Owner]) {
			used[source.reference] = true
		}
	}
	found, err := c.store.client.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, container := range found {
		used[container.Image] = true
	}
	return used, nil
}

// noteUnused writes down since when the image is unused.
func (c *collector) noteUnused(ctx context.Context, record images.Image, since time.Time) error {
	noted := since.UTC().Format(time.RFC3339Nano)
	if record.Labels[naming.UnusedSince] == noted {
		return nil
	}
	record.Labels[naming.UnusedSince] = noted
	_, err := c.store.client.ImageService().Update(ctx, record, "labels."+naming.UnusedSince)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("note that image %s is unused: %w", record.Name, err)
	}
	return nil
}

// remove removes an image that has been unused since then, and returns how long to wait if it may not yet go.
func (c *collector) remove(ctx context.Context, record images.Image, since time.Time) (time.Duration, error) {
	// A start that looks for its image only now finds it, and keeps it by its lease, or finds that it is gone. A pull that
	// counts on layers of this image keeps them by its own.
	used, err := c.imagesInUse(ctx)
	if err != nil {
		return 0, err
	}
	if used[record.Name] {
		return c.retry, nil
	}
	if last := c.lastUseOf(record.Name); last.After(since) {
		return c.due(last), nil
	}
	now, err := c.store.client.ImageService().Get(ctx, record.Name)
	if err == nil && (now.Labels[naming.Owned] != naming.PluginName || now.Target.Digest != record.Target.Digest) {
		// Another program has taken it over.
		return c.delay, nil
	}
	if err == nil {
		err = c.store.client.ImageService().Delete(ctx, record.Name, images.SynchronousDelete(), images.DeleteTarget(&now.Target))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return 0, fmt.Errorf("remove image %s: %w", record.Name, err)
	}
	c.removeUse(record.Name)
	c.store.config.Logger.Info("removed an image that no task used", "image", record.Name, "unused_since", since)
	return c.delay, nil
}
