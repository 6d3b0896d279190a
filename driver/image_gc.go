package driver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/tranche-gpu/tranche/driver/naming"
)

const (
	// collectorGrace is how long a new life of the plugin removes nothing: Nomad is just starting its tasks again.
	collectorGrace = time.Minute
	// collectorRetry is when an image is tried again that could not be removed, since a task with it was starting.
	collectorRetry = 5 * time.Second
	// collectorSettle is what the collector waits for more tasks to end, so that a job of many is one sweep.
	collectorSettle = time.Second
)

// imageCollector removes images that the driver has pulled and that no task has used for a while. An image that somebody
// else has put into the namespace does not bear our label and is left alone.
type imageCollector struct {
	delay   time.Duration
	grace   time.Duration
	retry   time.Duration
	settle  time.Duration
	started time.Time
	wake    chan struct{}

	mu sync.Mutex
	// lastUse is when an image was last in use, as far as this life of the plugin knows.
	lastUse map[string]time.Time
}

func newImageCollector(delay time.Duration) *imageCollector {
	return &imageCollector{
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
func (c *imageCollector) noteUse(image string, at time.Time) {
	source, err := parseImage(image)
	if c == nil || err != nil || source.reference == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.After(c.lastUse[source.reference]) {
		c.lastUse[source.reference] = at
	}
}

func (c *imageCollector) lastUseOf(reference string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastUse[reference]
}

func (c *imageCollector) forget(reference string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lastUse, reference)
}

// unusedSince is since when nobody has used the image, which nobody uses now.
func (c *imageCollector) unusedSince(record images.Image) time.Time {
	since := c.lastUseOf(record.Name)
	noted, err := time.Parse(time.RFC3339Nano, record.Labels[naming.UnusedSince])
	if err == nil && noted.After(since) {
		return noted
	}
	if since.IsZero() {
		// Nobody knows. It is unused from now on.
		since = time.Now()
		c.noteUse(record.Name, since)
	}
	return since
}

// due is how long the image stays.
func (c *imageCollector) due(since time.Time) time.Duration {
	return max(time.Until(since.Add(c.delay)), time.Until(c.started.Add(c.grace)))
}

// imageUnused tells the collector that a task that used its image is gone.
func (d *Driver) imageUnused(cfg *drivers.TaskConfig) {
	c := d.images.collector
	var options TaskConfig
	if c == nil || cfg.DecodeDriverConfig(&options) != nil {
		return
	}
	c.noteUse(options.Image, time.Now())
	select {
	case c.wake <- struct{}{}:
	default: // It will wake already.
	}
}

// tendImages removes what plugin processes that are dead began to pull, and then images that are no longer used, until the
// driver ends.
func (d *Driver) tendImages() {
	for err := d.dropDeadPulls(); err != nil; err = d.dropDeadPulls() {
		d.logger.Debug("what a dead plugin process pulled in part is still there; trying again", "error", err)
		if !d.client.Pause(collectorRetry) {
			return
		}
	}
	c := d.images.collector
	if c == nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-timer.C:
		case <-c.wake:
			if !d.client.Pause(c.settle) {
				return
			}
		}
		next, err := d.sweepImages()
		if err != nil {
			d.logger.Debug("images that no task uses could not be removed; trying again", "error", err)
			next = max(c.delay, collectorRetry)
		}
		timer.Reset(next)
	}
}

// dropDeadPulls removes the leases of pulls whose plugin process is dead, this agent's or another's, and so what they had
// fetched.
func (d *Driver) dropDeadPulls() error {
	ctx, cancel := d.client.Call()
	defer cancel()
	found, err := d.client.LeasesService().List(ctx, fmt.Sprintf("labels.%q", naming.Pull))
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, lease := range found {
		if !ownerDied(lease.Labels[naming.Owner]) {
			continue
		}
		if err := d.dropLease(lease, false); err != nil {
			return fmt.Errorf("remove lease %s of a pull that a dead plugin process began: %w", lease.ID, err)
		}
	}
	return nil
}

// sweepImages removes the images that are due, and returns how long it is until the next sweep.
func (d *Driver) sweepImages() (time.Duration, error) {
	ctx, cancel := d.client.Call()
	defer cancel()
	c := d.images.collector
	ours, err := d.client.ImageService().List(ctx, fmt.Sprintf("labels.%q==%q", naming.Owned, PluginName))
	if err != nil {
		return 0, fmt.Errorf("list images: %w", err)
	}
	used, err := d.imagesInUse(ctx)
	if err != nil {
		return 0, err
	}
	// Containers may go without our being told: by somebody's hand, or once containerd is back.
	next := max(c.delay, collectorRetry)
	for _, record := range ours {
		if used[record.Name] {
			c.noteUse(record.Name, time.Now())
			continue
		}
		since := c.unusedSince(record)
		wait := c.due(since)
		if wait <= 0 {
			if wait, err = d.removeImage(ctx, record, since); err != nil {
				return 0, err
			}
		} else if err := d.noteUnused(ctx, record, since); err != nil {
			return 0, err
		}
		next = min(next, max(wait, time.Millisecond))
	}
	return next, nil
}

// imagesInUse are the names of the images from which containers in the namespace were made, whoever made them, and from
// which a task is being started, by this agent or another: the lease of a start names its image.
func (d *Driver) imagesInUse(ctx context.Context) (map[string]bool, error) {
	// First, since a start that ends now has a container afterwards.
	starting, err := d.client.LeasesService().List(ctx, naming.Filter(naming.Owned, PluginName))
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	used := map[string]bool{}
	for _, lease := range starting {
		source, err := parseImage(lease.Labels[naming.Image])
		if err == nil && !ownerDied(lease.Labels[naming.Owner]) {
			used[source.reference] = true
		}
	}
	found, err := d.client.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, container := range found {
		used[container.Image] = true
	}
	return used, nil
}

// noteUnused writes down since when the image is unused.
func (d *Driver) noteUnused(ctx context.Context, record images.Image, since time.Time) error {
	noted := since.UTC().Format(time.RFC3339Nano)
	if record.Labels[naming.UnusedSince] == noted {
		return nil
	}
	record.Labels[naming.UnusedSince] = noted
	_, err := d.client.ImageService().Update(ctx, record, "labels."+naming.UnusedSince)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("note that image %s is unused: %w", record.Name, err)
	}
	return nil
}

// removeImage removes an image that has been unused since then, and returns how long to wait if it may not yet go.
func (d *Driver) removeImage(ctx context.Context, record images.Image, since time.Time) (time.Duration, error) {
	c := d.images.collector
	// A start that looks for its image only now finds it, and keeps it by its lease, or finds that it is gone. A pull that
	// counts on layers of this image keeps them by its own.
	used, err := d.imagesInUse(ctx)
	if err != nil {
		return 0, err
	}
	if used[record.Name] {
		return c.retry, nil
	}
	if last := c.lastUseOf(record.Name); last.After(since) {
		return c.due(last), nil
	}
	now, err := d.client.ImageService().Get(ctx, record.Name)
	if err == nil && (now.Labels[naming.Owned] != PluginName || now.Target.Digest != record.Target.Digest) {
		// Somebody else has made it theirs.
		return c.delay, nil
	}
	if err == nil {
		err = d.client.ImageService().Delete(ctx, record.Name, images.SynchronousDelete(), images.DeleteTarget(&now.Target))
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return 0, fmt.Errorf("remove image %s: %w", record.Name, err)
	}
	c.forget(record.Name)
	d.logger.Info("removed an image that no task used", "image", record.Name, "unused_since", since)
	return c.delay, nil
}
