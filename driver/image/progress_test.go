package image

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

// fakeStore knows what has been fetched and what is under way.
type fakeStore struct {
	content.Store
	there    map[digest.Digest]bool
	underWay []content.Status
}

func (s *fakeStore) Info(_ context.Context, id digest.Digest) (content.Info, error) {
	if s.there[id] {
		return content.Info{Digest: id}, nil
	}
	return content.Info{}, errdefs.ErrNotFound
}

func (s *fakeStore) ListStatuses(context.Context, ...string) ([]content.Status, error) {
	return s.underWay, nil
}

func layerOf(text string, size int64) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString(text), Size: size}
}

func TestProgress_CountsWhatIsFetched(t *testing.T) {
	old, slow, quick := layerOf("old", 5<<20), layerOf("slow", 40<<20), layerOf("quick", 2<<20)
	store := &fakeStore{there: map[digest.Digest]bool{old.Digest: true}}
	p := &progress{store: store}
	must.Eq(t, "the registry has not answered", p.state().String())
	for _, desc := range []ocispec.Descriptor{old, slow, quick, slow} {
		_, err := p.expect(t.Context(), desc)
		must.NoError(t, err)
	}
	must.Eq(t, "0 B of 42 MiB", p.state().String())

	store.there[quick.Digest] = true
	store.underWay = []content.Status{{Ref: "layer-" + slow.Digest.String(), Offset: 10 << 20}, {Ref: "another's", Offset: 1}}
	p.update(t.Context())
	must.Eq(t, "12 MiB of 42 MiB", p.state().String())
	must.False(t, p.state().unpacking())

	store.there[slow.Digest], store.underWay = true, nil
	p.update(t.Context())
	must.Eq(t, "all of 42 MiB fetched, unpacking", p.state().String())
	must.True(t, p.state().unpacking())
}

func TestProgress_Watch(t *testing.T) {
	fetched := layerOf("fetched", 1)
	cases := []struct {
		name    string
		expects []ocispec.Descriptor
		comes   int64 // bytes in each second
		stalled bool
		reports int
	}{
		{"nothing comes", nil, 0, true, 0},
		// Reports come after 10 seconds, and then after twice as long each.
		{"bytes come from the network", nil, 1, false, 3},
		{"all has come and is unpacked", []ocispec.Descriptor{fetched}, 0, false, 3},
		{"a layer does not come", []ocispec.Descriptor{fetched, layerOf("missing", 1)}, 0, true, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &progress{store: &fakeStore{there: map[digest.Digest]bool{fetched.Digest: true}}}
				for _, desc := range c.expects {
					_, err := p.expect(t.Context(), desc)
					must.NoError(t, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				reports, stalled := 0, false
				var watching sync.WaitGroup
				watching.Go(func() {
					p.watch(ctx, Pace{}.orDefault(), 8*time.Second, func(progressState) { reports++ },
						func(progressState) { stalled = true; cancel() })
				})
				for ctx.Err() == nil {
					time.Sleep(time.Second)
					p.received.Add(c.comes)
				}
				watching.Wait()
				must.Eq(t, c.stalled, stalled)
				must.Eq(t, c.reports, reports)
			})
		})
	}
}
