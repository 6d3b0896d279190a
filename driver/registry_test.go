package driver

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
)

// spoiler answers a request in the place of the registry, or lets next do so.
type spoiler func(w http.ResponseWriter, r *http.Request, next http.Handler)

// testRegistry is a registry whose answers a test can spoil.
type testRegistry struct {
	host    string
	handler http.Handler

	mu     sync.Mutex
	spoil  spoiler
	counts map[string]int
}

func newTestRegistry(t *testing.T) *testRegistry {
	t.Helper()
	inner := withRanges(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	reg := &testRegistry{counts: map[string]int{}}
	reg.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reg.mu.Lock()
		reg.counts[r.Method+" "+r.URL.Path]++
		spoil := reg.spoil
		reg.mu.Unlock()
		if spoil == nil {
			inner.ServeHTTP(w, r)
			return
		}
		spoil(w, r, inner)
	})
	server := httptest.NewServer(reg.handler)
	t.Cleanup(server.Close)
	reg.host = strings.TrimPrefix(server.URL, "http://")
	return reg
}

// withRanges answers for the rest of a blob, which the registry that is wrapped cannot.
func withRanges(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			inner.ServeHTTP(w, r)
			return
		}
		whole := r.Clone(r.Context())
		whole.Header.Del("Range")
		recorded := httptest.NewRecorder()
		inner.ServeHTTP(recorded, whole)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(recorded.Body.Bytes()))
	})
}

// spoilWith has the registry answer like this from now on.
func (r *testRegistry) spoilWith(spoil spoiler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoil = spoil
}

// gets is how often the blob or manifest was asked for.
func (r *testRegistry) gets(digest v1.Hash) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := 0
	for request, n := range r.counts {
		if strings.HasPrefix(request, http.MethodGet+" ") && strings.HasSuffix(request, digest.String()) {
			total += n
		}
	}
	return total
}

// asked is how often there was this request.
func (r *testRegistry) asked(request string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[request]
}

// unique pushes an image that nobody has had yet, with a layer of so many bytes, and returns its reference and the
// layer's digest.
func (r *testRegistry) unique(t *testing.T, base v1.Image, name string, size int) (ref string, layer v1.Hash) {
	t.Helper()
	img, layer := uniqueImage(t, base, size)
	ref = r.host + "/" + name
	must.NoError(t, images.Push(context.Background(), img, ref))
	return ref, layer
}

// uniqueImage has one more layer than base that no other image has: a file /noise of so many bytes, and a name of its own.
func uniqueImage(t *testing.T, base v1.Image, size int) (v1.Image, v1.Hash) {
	t.Helper()
	noise := make([]byte, size)
	_, err := rand.Read(noise)
	must.NoError(t, err)
	img, err := images.WithFiles(base,
		images.File{Path: "/noise", Content: string(noise)},
		images.File{Path: "/unique", Content: rand.Text()})
	must.NoError(t, err)
	layers, err := img.Layers()
	must.NoError(t, err)
	digest, err := layers[len(layers)-1].Digest()
	must.NoError(t, err)
	return img, digest
}

// onGet spoils the getting of one blob.
func onGet(digest v1.Hash, spoil spoiler) spoiler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest.String()) {
			spoil(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// slowly sends an answer in pieces, with a pause after each.
func slowly(piece int, pause time.Duration) spoiler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&slowWriter{w, r.Context(), piece, pause}, r)
	}
}

type slowWriter struct {
	http.ResponseWriter
	ctx   context.Context
	piece int
	pause time.Duration
}

func (w *slowWriter) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		n, err := w.ResponseWriter.Write(data[:min(w.piece, len(data))])
		written += n
		if err != nil {
			return written, err
		}
		data = data[n:]
		w.ResponseWriter.(http.Flusher).Flush()
		select {
		case <-time.After(w.pause):
		case <-w.ctx.Done():
			return written, w.ctx.Err()
		}
	}
	return written, nil
}

// cutAfter breaks the connection when so many bytes of the answer have been sent.
func cutAfter(bytes int) spoiler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&cutWriter{w, bytes}, r)
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(data []byte) (int, error) {
	if len(data) > w.left {
		_, _ = w.ResponseWriter.Write(data[:w.left])
		w.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	w.left -= len(data)
	return w.ResponseWriter.Write(data)
}

// answer refuses everything with a status.
func answer(status int) spoiler {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		}
		http.Error(w, "no", status)
	}
}

// nothingPulled asserts that nothing of a pull is in containerd: no image, layer, unfinished download, lease or
// unfinished snapshot.
func (d *testDriver) nothingPulled(ref string, layer v1.Hash) {
	d.t.Helper()
	_, err := d.client.ImageService().Get(d.ctx, ref)
	must.True(d.t, errdefs.IsNotFound(err), must.Sprintf("an image is left: %v", err))
	d.noContent(layer)
	statuses, err := d.client.ContentStore().ListStatuses(d.ctx)
	must.NoError(d.t, err)
	must.SliceEmpty(d.t, statuses, must.Sprint("an unfinished download is left"))
	d.noPullLeases()
	err = d.client.SnapshotService(spec.DefaultSnapshotter).Walk(d.ctx, func(_ context.Context, info snapshots.Info) error {
		must.StrNotHasPrefix(d.t, "extract-", info.Name, must.Sprint("an unfinished snapshot is left"))
		return nil
	})
	must.NoError(d.t, err)
}

func (d *testDriver) noContent(layer v1.Hash) {
	d.t.Helper()
	must.False(d.t, d.hasContent(layer), must.Sprint("a layer is left"))
}

func (d *testDriver) hasContent(hash v1.Hash) bool {
	d.t.Helper()
	_, err := d.client.ContentStore().Info(d.ctx, digest.Digest(hash.String()))
	if !errdefs.IsNotFound(err) {
		must.NoError(d.t, err)
	}
	return err == nil
}

func (d *testDriver) noPullLeases() {
	d.t.Helper()
	found, err := d.client.LeasesService().List(d.ctx, `labels."`+naming.Pull+`"`)
	must.NoError(d.t, err)
	must.SliceEmpty(d.t, found, must.Sprint("a lease is left"))
}

// startFails starts a task that cannot start, and returns why. Nothing of it may be left.
func (d *testDriver) startFails(edit ...func(*spec.TaskConfig)) error {
	d.t.Helper()
	cfg := d.failing(edit...)
	_, _, err := d.StartTask(cfg)
	must.Error(d.t, err)
	d.nothingLeft(cfg)
	return err
}

// said counts the task events with this text in them.
func (l *eventLog) said(text string) int {
	n := 0
	for _, event := range l.all() {
		if strings.Contains(event, text) {
			n++
		}
	}
	return n
}
