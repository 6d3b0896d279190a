package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc"

	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/spec"
	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
)

func withSnapshotter(t *testing.T, n *testNode, snapshotter string) *testDriver {
	config := n.config()
	config.Snapshotter = snapshotter
	return newTestDriverWith(t, n, config)
}

func TestSnapshotter_NotThere(t *testing.T) {
	d := withSnapshotter(t, requireNode(t), "stargz")
	wants := []string{`plugin option snapshotter = "stargz"`, "has none of this name", "native, overlayfs", "proxy_plugins"}
	fingerprints, err := d.Fingerprint(d.ctx)
	must.NoError(t, err)
	f := next(t, fingerprints, drivers.HealthStateUnhealthy)
	err = d.startFails()
	for _, want := range wants {
		must.StrContains(t, f.HealthDescription, want)
		must.ErrorContains(t, err, want)
	}
}

// TestSnapshotter_Native has images of a node unpacked twice, each by what the plugin's configuration says.
func TestSnapshotter_Native(t *testing.T) {
	d := withSnapshotter(t, requireNode(t), "native")
	cfg := d.task("echo native")
	d.run(cfg, "native")
	_, err := d.client.SnapshotService("native").Stat(d.ctx, naming.ContainerID(cfg))
	must.NoError(t, err)
	must.NoError(t, d.DestroyTask(cfg.ID, false))
	_, err = d.client.SnapshotService("native").Stat(d.ctx, naming.ContainerID(cfg))
	must.True(t, errdefs.IsNotFound(err))
}

// lazySnapshotter behaves as those do that have a layer without containerd's fetching it, by what containerd's client
// tells them of it. It takes the layers from the test.
type lazySnapshotter struct {
	snapshots.Snapshotter
	reference string
	layers    map[string]v1.Layer
}

func (l *lazySnapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	var info snapshots.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return nil, err
		}
	}
	mounts, err := l.Snapshotter.Prepare(ctx, key, parent, opts...)
	layer := l.layers[info.Labels[snapshotters.TargetLayerDigestLabel]]
	if err != nil || layer == nil || info.Labels[snapshotters.TargetRefLabel] != l.reference {
		return mounts, err
	}
	files, err := layer.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer files.Close()
	if _, err := archive.Apply(ctx, mounts[0].Source, files); err != nil {
		return nil, err
	}
	target := info.Labels[snapshots.LabelSnapshotRef]
	if err := l.Commit(ctx, target, key, opts...); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("snapshot %s: %w", target, errdefs.ErrAlreadyExists)
}

// serveLazily starts a snapshotter that has the image's layers, at a socket in dir. It keeps them in the native
// snapshotter of another containerd.
func serveLazily(t *testing.T, backend *containerd.Client, dir, ref string, img v1.Image) (socket string) {
	t.Helper()
	lazy := &lazySnapshotter{Snapshotter: backend.SnapshotService("native"), reference: ref, layers: map[string]v1.Layer{}}
	layers, err := img.Layers()
	must.NoError(t, err)
	for _, layer := range layers {
		digest, err := layer.Digest()
		must.NoError(t, err)
		lazy.layers[digest.String()] = layer
	}
	lease, err := backend.LeasesService().Create(namespaces.WithNamespace(t.Context(), "lazy"), leases.WithRandomID())
	must.NoError(t, err)
	inBackend := func(ctx context.Context) context.Context {
		return leases.WithLease(namespaces.WithNamespace(ctx, "lazy"), lease.ID)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(inBackend(ctx), request)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, streamIn{stream, inBackend(stream.Context())})
		}))
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(lazy))
	socket = filepath.Join(dir, "lazy.sock")
	listener, err := net.Listen("unix", socket)
	must.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

// streamIn is a stream with another context.
type streamIn struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamIn) Context() context.Context { return s.ctx }

func TestSnapshotter_Lazy(t *testing.T) {
	n := *requireNode(t)
	reg := newTestRegistry(t)
	img, layer := uniqueImage(t, n.busybox, 1000)
	ref := reg.host + "/lazy:1"
	must.NoError(t, images.Push(context.Background(), img, ref))
	dir := filepath.Join(n.dir, "lazy")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	backend, err := n.containerd.Client()
	must.NoError(t, err)
	t.Cleanup(func() { _ = backend.Close() })
	socket := serveLazily(t, backend, dir, ref, img)
	n.containerd, err = node.StartContainerd(context.Background(), filepath.Join(dir, "c"), node.ContainerdOptions{
		Binary:      os.Getenv("TRANCHE_TEST_CONTAINERD"),
		ExtraConfig: fmt.Sprintf("[proxy_plugins.lazy]\ntype = \"snapshot\"\naddress = %q\n", socket),
	})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, n.containerd.Stop()) })

	d := withSnapshotter(t, &n, "lazy")
	edit := func(c *spec.TaskConfig) { c.Image = ref }
	d.run(d.task("wc -c < /noise", edit), "1000")
	must.Zero(t, reg.gets(layer))
	must.False(t, d.hasContent(layer))
	must.Eq(t, 1, d.events.said("Pulling image"))

	// Its layers never come, and still the image is there.
	d.run(d.task("wc -c < /noise", edit), "1000")
	must.Eq(t, 1, d.events.said("Pulling image"))
}
