package driver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	nstructs "github.com/hashicorp/nomad/nomad/structs"
)

// pull fetches the image from its registry and unpacks it.
func (d *Driver) pull(ctx context.Context, s *startup, source imageSource) (containerd.Image, error) {
	timeout := s.options.pullTimeout(&d.config)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	d.say(s.cfg, map[string]string{"image": source.reference}, "Pulling image %s", source.reference)
	began := time.Now()
	pulled, err := d.client.Pull(ctx, source.reference,
		containerd.WithPullUnpack,
		containerd.WithPullSnapshotter(d.config.Snapshotter),
		containerd.WithResolver(d.resolver(ctx)))
	if err != nil {
		return nil, pullError(ctx, source, timeout, err)
	}
	d.logger.Info("pulled image", "image", source.reference, "digest", pulled.Target().Digest, "took", time.Since(began))
	return pulled, nil
}

// resolver talks to registries as containerd's own tools do: by the hosts.toml of a registry where the operator has
// one, else by HTTPS, and by plain HTTP to a registry on this machine.
func (d *Driver) resolver(ctx context.Context) remotes.Resolver {
	options := config.HostOptions{}
	if dir := d.config.RegistryHostsDir; dir != "" {
		options.HostDir = config.HostDirFromRoot(filepath.Clean(dir))
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: config.ConfigureHosts(ctx, options)})
}

// pullError says what is wrong with a pull, what to do, and whether another try can help.
func pullError(ctx context.Context, source imageSource, timeout time.Duration, err error) error {
	err = withoutQueries{err}
	switch status := registryStatus(err); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nstructs.NewRecoverableError(fmt.Errorf("pull image %q: not done after %s: %w; raise "+
			"image_pull_timeout if the image is large or the registry slow", source.given, timeout, err), true)
	case isAway(err):
		return nstructs.NewRecoverableError(fmt.Errorf("pull image %q: containerd went away: %w", source.given, err), true)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("pull image %q: the registry has no %s; check name and tag: %w",
			source.given, source.reference, err)
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("pull image %q: the registry does not give %s to this node without credentials, or has no "+
			"such image: %w", source.given, source.reference, err)
	default:
		return nstructs.NewRecoverableError(fmt.Errorf("pull image %q: %w", source.given, err), true)
	}
}

// withoutQueries is an error whose text shows the URLs in it without their queries. A registry may redirect to storage
// by a URL whose query is the permission to read there; anybody who may see a task's events would have it.
type withoutQueries struct{ err error }

// urlQuery is the query of a URL, which errors show as it is or between quotation marks, with those in it escaped.
var urlQuery = regexp.MustCompile(`(?i)(https?://[^\s"?]*\?)(?:\\.|[^\s"\\])+`)

func (e withoutQueries) Error() string {
	return urlQuery.ReplaceAllString(e.err.Error(), "${1}[redacted]")
}

func (e withoutQueries) Unwrap() error { return e.err }

// registryStatus is the HTTP status with which the registry refused, 0 if it did not.
func registryStatus(err error) int {
	var unexpected remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &unexpected) {
		return unexpected.StatusCode
	}
	if errors.Is(err, docker.ErrInvalidAuthorization) {
		return http.StatusUnauthorized
	}
	return 0
}
