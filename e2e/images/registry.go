package images

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// LocalRegistry is an image registry in this process, on 127.0.0.1, over plain HTTP.
type LocalRegistry struct {
	// Host is its address as it stands in an image reference: 127.0.0.1:PORT.
	Host   string
	server *http.Server
	done   chan struct{}
}

// Registry starts a registry. Close ends it.
func Registry() (*LocalRegistry, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a port for the registry: %w", err)
	}
	r := &LocalRegistry{
		Host: listener.Addr().String(),
		server: &http.Server{
			Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0))),
			ReadHeaderTimeout: time.Minute,
		},
		done: make(chan struct{}),
	}
	go func() {
		defer close(r.done)
		_ = r.server.Serve(listener)
	}()
	return r, nil
}

// Push puts the image into the registry as repository, a name with a tag such as "busybox:test", and returns the
// reference that a jobspec names it by.
func (r *LocalRegistry) Push(ctx context.Context, img v1.Image, repository string) (string, error) {
	ref := r.Host + "/" + repository
	return ref, Push(ctx, img, ref)
}

// Close ends the registry and waits until it has.
func (r *LocalRegistry) Close() error {
	err := r.server.Close()
	<-r.done
	return err
}

// Push puts the image into the registry that ref names.
func Push(ctx context.Context, img v1.Image, ref string) error {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return fmt.Errorf("image name %q: %w", ref, err)
	}
	if err := remote.Write(parsed, img, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	return nil
}
