package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

// countingStore is a content store that counts how often each blob is asked for.
type countingStore struct {
	content.Store
	blobs map[digest.Digest][]byte
	reads map[digest.Digest]int
}

func newCountingStore(blobs ...[]byte) *countingStore {
	s := &countingStore{blobs: map[digest.Digest][]byte{}, reads: map[digest.Digest]int{}}
	for _, blob := range blobs {
		s.blobs[digest.FromBytes(blob)] = blob
	}
	return s
}

func (s *countingStore) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	s.reads[desc.Digest]++
	data, ok := s.blobs[desc.Digest]
	if !ok {
		return nil, errdefs.ErrNotFound
	}
	return shortReader{data}, nil
}

// shortReader reads one byte less than it promises where its content says so, as a connection does that breaks.
type shortReader struct{ data []byte }

func (r shortReader) ReadAt(p []byte, off int64) (int, error) {
	if bytes.HasPrefix(r.data, []byte("broken")) {
		return copy(p, r.data[off:len(r.data)-1]), errors.New("the connection broke")
	}
	return copy(p, r.data[off:]), nil
}
func (r shortReader) Size() int64 { return int64(len(r.data)) }
func (shortReader) Close() error  { return nil }

func TestMetadataCache(t *testing.T) {
	manifest, config, layer := []byte("{manifest}"), []byte("{config}"), []byte("layer")
	large, broken := make([]byte, maxRememberedBytes+1), []byte("broken")
	cases := []struct {
		name      string
		mediaType string
		data      []byte
		reads     int
	}{
		{"a manifest is asked for once", ocispec.MediaTypeImageManifest, manifest, 1},
		{"a configuration is asked for once", ocispec.MediaTypeImageConfig, config, 1},
		{"an index that is too large is not remembered", ocispec.MediaTypeImageIndex, large, 3},
		{"a layer is not remembered", ocispec.MediaTypeImageLayer, layer, 3},
	}
	store := newCountingStore(manifest, config, layer, large, broken)
	memory, err := NewMetadataCache()
	must.NoError(t, err)
	memory.Store = store
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			desc := ocispec.Descriptor{MediaType: c.mediaType, Digest: digest.FromBytes(c.data)}
			for range 3 {
				data, err := content.ReadBlob(t.Context(), memory, desc)
				must.NoError(t, err)
				must.True(t, bytes.Equal(c.data, data))
			}
			must.Eq(t, c.reads, store.reads[desc.Digest])
		})
	}
	t.Run("what could not be read whole is not remembered", func(t *testing.T) {
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(broken)}
		for range 2 {
			_, err := content.ReadBlob(t.Context(), memory, desc)
			must.ErrorContains(t, err, "the connection broke")
		}
	})
	t.Run("what is too large is not read", func(t *testing.T) {
		huge := make([]byte, MaxMetadataBytes+1)
		store.blobs[digest.FromBytes(huge)] = huge
		for _, mediaType := range []string{ocispec.MediaTypeImageConfig, ocispec.MediaTypeImageLayer, "text/plain"} {
			desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(huge)}
			_, err := content.ReadBlob(t.Context(), memory, desc)
			must.ErrorIs(t, err, errTooLarge)
		}
		layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(huge)}
		reader, err := memory.ReaderAt(t.Context(), layer)
		must.NoError(t, err)
		n, err := io.Copy(io.Discard, content.NewReader(reader))
		must.NoError(t, err)
		must.Eq(t, int64(len(huge)), n)
	})
	t.Run("what is not there is not remembered", func(t *testing.T) {
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("missing")}
		_, err := content.ReadBlob(t.Context(), memory, desc)
		must.ErrorIs(t, err, errdefs.ErrNotFound)
	})
}
