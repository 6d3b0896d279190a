package driver

import (
	"bytes"
	"context"

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
)

// blobMemory is containerd's content store with a memory for the manifests and configurations of images. A start reads
// them several times over, two calls each; what a digest names never changes. That an image is there is not taken from
// here: its record, its layers and its snapshots are asked for each time.
type blobMemory struct {
	content.Store
	known *lru.Cache[digest.Digest, []byte]
}

// newBlobMemory returns a memory; its Store is to be set before it is used.
func newBlobMemory() (*blobMemory, error) {
	known, err := lru.New[digest.Digest, []byte](rememberedBlobs)
	return &blobMemory{known: known}, err
}

// ReaderAt reads a blob, from memory where it has been read before.
func (m *blobMemory) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if !isMetadata(desc.MediaType) {
		return m.Store.ReaderAt(ctx, desc)
	}
	if data, ok := m.known.Get(desc.Digest); ok {
		return blobReader{bytes.NewReader(data)}, nil
	}
	reader, err := m.Store.ReaderAt(ctx, desc)
	if err != nil || reader.Size() > maxRememberedBytes {
		return reader, err
	}
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

// blobReader is a blob in memory.
type blobReader struct{ *bytes.Reader }

func (blobReader) Close() error { return nil }
