package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tranche-gpu/tranche/e2e/images"
)

// ImportImage puts an image into the node's containerd, in the namespace of the task driver, under a reference.
func (n *Node) ImportImage(ctx context.Context, ref string, image v1.Image) error {
	file := filepath.Join(n.Dir, "import.tar")
	if err := images.SaveDockerArchive(image, ref, file); err != nil {
		return fmt.Errorf("save image %s: %w", ref, err)
	}
	defer os.Remove(file)
	return n.Containerd.Import(ctx, "nomad", file)
}

// Import puts the images of an archive into a namespace.
func (c *Containerd) Import(ctx context.Context, namespace, file string) error {
	archive, err := os.Open(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	client, err := c.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Import(namespaces.WithNamespace(ctx, namespace), archive); err != nil {
		return fmt.Errorf("import %s into containerd at %s: %w", file, c.Address, err)
	}
	return nil
}
