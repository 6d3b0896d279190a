package image

import (
	"bytes"
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// rememberedBlobs is how many manifests and configurations are remembered: those of some fifty images.
	rememberedBlobs = 128
	// maxRememberedBytes is the size of the largest that is. Those of real images have a few thousand bytes.
	maxRememberedBytes = 64 << 10
	// MaxMetadataBytes is how large any may be. Registries take manifests of up to 4 MiB.
	MaxMetadataBytes = 32 << 20
)

// MetadataCache is containerd's content store with a memory for the manifests and configurations of images. A start reads
// them several times over, two calls each; what a digest names never changes. That an image is there is not taken from
// here: its record, its layers and its snapshots are asked for each time.
//
// It bounds them, too. containerd's client reads a manifest or a configuration into this plugin's memory, of whatever size
// it is; who made an image must not decide how much that is. Layers are read by containerd itself.
type MetadataCache struct {
	content.Store
	known *lru.Cache[digest.Digest, []byte]
}

// NewMetadataCache returns a memory; its Store is to be set before it is used.
func NewMetadataCache() (*MetadataCache, error) {
	known, err := lru.New[digest.Digest, []byte](rememberedBlobs)
	return &MetadataCache{known: known}, err
}

// ReaderAt reads a blob, from memory where it has been read before.
func (m *MetadataCache) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	metadata := isMetadata(desc.MediaType)
	if data, ok := m.known.Get(desc.Digest); ok && metadata {
		return blobReader{bytes.NewReader(data)}, nil
	}
	reader, err := m.Store.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	switch size := reader.Size(); {
	case !metadata:
		return pieceReader{reader}, nil
	case size > MaxMetadataBytes:
		reader.Close()
		return nil, fmt.Errorf("%s: %w, but %s", desc.Digest, errTooLarge, byteSize(size))
	case size > maxRememberedBytes:
		return reader, nil
	}
	return m.remember(desc, reader)
}

// remember reads a blob whole.
func (m *MetadataCache) remember(desc ocispec.Descriptor, reader content.ReaderAt) (content.ReaderAt, error) {
	defer reader.Close()
	data := make([]byte, reader.Size())
	if n, err := reader.ReadAt(data, 0); n < len(data) {
		return nil, err
	}
	m.known.Add(desc.Digest, data)
	return blobReader{bytes.NewReader(data)}, nil
}

func isMetadata(mediaType string) bool {
	return images.IsManifestType(mediaType) || images.IsIndexType(mediaType) || images.IsConfigType(mediaType)
}

// errTooLarge is the error of an image that was not made to be run.
var errTooLarge = fmt.Errorf("a manifest or configuration of an image must not have more than %s", byteSize(MaxMetadataBytes))

// pieceReader is a blob that does not say that it is a manifest or a configuration. An image can call anything a layer:
// it can be read piece by piece, and not at once.
type pieceReader struct{ content.ReaderAt }

// ReadAt implements io.ReaderAt.
func (r pieceReader) ReadAt(p []byte, off int64) (int, error) {
	if len(p) > MaxMetadataBytes {
		return 0, fmt.Errorf("%w, but %s", errTooLarge, byteSize(int64(len(p))))
	}
	return r.ReaderAt.ReadAt(p, off)
}

// blobReader is a blob in memory.
type blobReader struct{ *bytes.Reader }

func (blobReader) Close() error { return nil }
