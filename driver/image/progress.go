package image

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/dustin/go-humanize"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Pace says how often the progress of a pull is measured and reported. The zero value means the defaults.
type Pace struct {
	// Look is how often the progress is measured. Report is after what time it is first reported; each further report takes
	// twice as long, since Nomad keeps only the ten latest events of a task.
	Look, Report time.Duration
	// Helper is how long a credential helper may take.
	Helper time.Duration
}

func (p Pace) orDefault() Pace {
	for _, value := range []struct {
		field *time.Duration
		value time.Duration
	}{{&p.Look, time.Second}, {&p.Report, 10 * time.Second}, {&p.Helper, 30 * time.Second}} {
		if *value.field == 0 {
			*value.field = value.value
		}
	}
	return p
}

// progress is the progress of a pull. Its total grows as manifests arrive; containerd has the bytes received.
type progress struct {
	store content.Store
	// received counts the bytes from the network. containerd is given them in large pieces, too large to tell a slow
	// registry from one that has stopped.
	received atomic.Int64

	mu    sync.Mutex
	parts map[digest.Digest]*part
}

// part is a manifest, a configuration or a layer.
type part struct {
	ref       string // of what containerd has of it so far
	size, got int64
	done      bool
}

// progressState is a progress at one moment.
type progressState struct {
	received   int64
	got, total int64 // bytes
	parts      int
	done       int
}

// unpacking says that all has come. What still takes time then is this node's disk.
func (s progressState) unpacking() bool { return s.parts > 0 && s.done == s.parts }

func (s progressState) String() string {
	switch {
	case s.parts == 0:
		return "the registry has not answered"
	case s.unpacking():
		return "all of " + byteSize(s.total) + " fetched, unpacking"
	}
	return byteSize(s.got) + " of " + byteSize(s.total)
}

// byteSize is a number of bytes for people.
func byteSize(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// expect notes a part before it is fetched. It has the signature of an image handler.
func (p *progress) expect(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	_, err := p.store.Info(ctx, desc.Digest)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.parts == nil {
		p.parts = map[digest.Digest]*part{}
	}
	if p.parts[desc.Digest] == nil {
		next := &part{ref: remotes.MakeRefKey(ctx, desc), size: desc.Size}
		if err == nil {
			// It was there before, and is not part of what the pull brings.
			next.size, next.done = 0, true
		}
		p.parts[desc.Digest] = next
	}
	return nil, nil
}

// update queries containerd for the progress. Without an answer the progress stays as it is.
func (p *progress) update(ctx context.Context) {
	statuses, err := p.store.ListStatuses(ctx)
	if err != nil {
		return
	}
	offsets := map[string]int64{}
	for _, status := range statuses {
		offsets[status.Ref] = status.Offset
	}
	for id, pending := range p.pending() {
		offset, underWay := offsets[pending.ref]
		if !underWay {
			if _, err := p.store.Info(ctx, id); err != nil {
				continue
			}
			offset = pending.size
		}
		p.mu.Lock()
		p.parts[id].got, p.parts[id].done = offset, !underWay
		p.mu.Unlock()
	}
}

func (p *progress) pending() map[digest.Digest]part {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[digest.Digest]part{}
	for id, part := range p.parts {
		if !part.done {
			all[id] = *part
		}
	}
	return all
}

func (p *progress) state() progressState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := progressState{received: p.received.Load(), parts: len(p.parts)}
	for _, part := range p.parts {
		s.got += part.got
		s.total += part.size
		if part.done {
			s.done++
		}
	}
	return s
}

// watch follows the pull until ctx ends: report is called with its progress, and stalled is called when nothing has come for as
// long as patience.
func (p *progress) watch(ctx context.Context, pace Pace, patience time.Duration, report func(progressState),
	stalled func(progressState)) {
	ticker := time.NewTicker(pace.Look)
	defer ticker.Stop()
	last, since := p.state(), time.Now()
	reported, interval := time.Now(), pace.Report
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.update(ctx)
		now := p.state()
		if now != last || now.unpacking() {
			last, since = now, time.Now()
		}
		if time.Since(since) > patience {
			stalled(now)
			return
		}
		if time.Since(reported) > interval {
			report(now)
			reported, interval = time.Now(), 2*interval
		}
	}
}

// meter has the client count what it receives.
func (p *progress) meter(client *http.Client) error {
	next := client.Transport
	if next == nil {
		return fmt.Errorf("the HTTP client for registries has no transport")
	}
	client.Transport = meteredTransport{next, &p.received}
	return nil
}

type meteredTransport struct {
	next     http.RoundTripper
	received *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (t meteredTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil {
		t.received.Add(1) // An answer without a body is progress, too.
		response.Body = meteredBody{response.Body, t.received}
	}
	return response, err
}

type meteredBody struct {
	io.ReadCloser
	received *atomic.Int64
}

// Read implements io.Reader.
func (b meteredBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	b.received.Add(int64(n))
	return n, err
}
