package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/naming"
	"github.com/tranche-gpu/tranche/driver/recoverable"
)

// pullLeaseLife is after what time containerd removes what a pull has fetched if the driver has not. No pull takes so long.
const pullLeaseLife = 24 * time.Hour

// pull fetches the image from its registry and unpacks it, and reports its progress to the tasks that wait. When it fails,
// nothing that it fetched is left.
func (s *Store) pull(ctx context.Context, p *pull) (containerd.Image, error) {
	prog := &progress{store: s.client.ContentStore()}
	s.startPulling(p, prog)
	began := time.Now()
	ctx, release, err := s.holdPull(ctx, p.source)
	if err != nil {
		return nil, err
	}
	pulled, err := s.download(ctx, p, prog)
	release(err == nil)
	if err != nil {
		return nil, err
	}
	prog.update(ctx)
	took := time.Since(began).Round(100 * time.Millisecond)
	s.notifyWaiters(p, "Pulled image %s (%s in %s)", p.source.reference, byteSize(prog.state().total), took)
	s.config.Logger.Info("pulled image", "image", p.source.reference, "digest", pulled.Target().Digest, "took", took)
	return pulled, nil
}

// download has containerd's client pull, and ends it when nothing comes any more.
func (s *Store) download(ctx context.Context, p *pull, prog *progress) (containerd.Image, error) {
	labels, err := s.pullLabels(ctx, p.source)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.watchPull(ctx, p, prog, stop) })
	search := s.newCredentialSearch(ctx, p)
	pulled, err := s.client.Pull(ctx, p.source.reference,
		containerd.WithPullUnpack,
		containerd.WithPlatformMatcher(p.options.platform()),
		containerd.WithPullSnapshotter(s.client.Snapshotter),
		// A snapshotter that fetches layers when they are read has to know where from. Others do not mind.
		containerd.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(p.source.reference)),
		containerd.WithImageHandler(images.HandlerFunc(prog.expect)),
		containerd.WithPullLabels(labels),
		containerd.WithResolver(s.resolver(ctx, search, prog)))
	cause := context.Cause(ctx)
	stop(nil)
	watching.Wait()
	var stalled *stalledError
	switch {
	case err == nil:
		return pulled, nil
	case errors.As(cause, &stalled):
		return nil, recoverable.Error(fmt.Errorf("pull image %q: %w: %w", p.source.given, stalled,
			withoutQueries{err}))
	}
	return nil, s.pullError(p, search, err)
}

// stalledError is why a pull was ended that made no progress.
type stalledError struct {
	patience time.Duration
	state    progressState
}

func (e *stalledError) Error() string {
	return fmt.Sprintf("no progress for %s (%s); check the registry and the network, or raise the plugin's "+
		"pull_activity_timeout", e.patience, e.state)
}

// watchPull reports the progress of the pull to the tasks that wait, and stops it when it stalls.
func (s *Store) watchPull(ctx context.Context, p *pull, prog *progress, stop context.CancelCauseFunc) {
	patience := s.config.PullActivityTimeout
	prog.watch(ctx, s.Pace.orDefault(), patience,
		func(state progressState) { s.notifyWaiters(p, "Pulling image %s: %s", p.source.reference, state) },
		func(state progressState) { stop(&stalledError{patience, state}) })
}

// holdPull takes the lease of a pull. What a pull that failed has fetched is gone when release returns.
func (s *Store) holdPull(ctx context.Context, source imageSource,
) (leased context.Context, release func(ok bool), err error) {
	lease, err := s.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(pullLeaseLife),
		leases.WithLabel(naming.Pull, source.reference), leases.WithLabel(naming.Owner, s.client.Owner))
	if err != nil {
		return nil, nil, s.client.Recoverable(noSpace(fmt.Errorf("take a lease in containerd: %w", err)))
	}
	release = func(ok bool) {
		if err := s.dropLease(lease, ok); err != nil {
			s.config.Logger.Warn("cannot remove the lease of a pull; trying again", "lease", lease.ID, "error", err)
			s.client.Go(func() {
				for s.client.Pause(collectorRetry) && s.dropLease(lease, ok) != nil {
				}
			})
		}
	}
	return leases.WithLease(ctx, lease.ID), release, nil
}

// dropLease removes the lease of a pull. If the pull failed it waits until containerd has removed what the lease held.
func (s *Store) dropLease(lease leases.Lease, ok bool) error {
	ctx, cancel := s.client.Call()
	defer cancel()
	var opts []leases.DeleteOpt
	if !ok {
		opts = append(opts, leases.SynchronousDelete)
	}
	err := s.client.LeasesService().Delete(ctx, lease, opts...)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// dropDeadPulls removes the leases of pulls whose plugin process is dead, this agent's or another's, and so what they had
// fetched.
func (s *Store) dropDeadPulls() error {
	ctx, cancel := s.client.Call()
	defer cancel()
	found, err := s.client.LeasesService().List(ctx, fmt.Sprintf("labels.%q", naming.Pull))
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, lease := range found {
		if !client.OwnerDied(lease.Labels[naming.Owner]) {
			continue
		}
		if err := s.dropLease(lease, false); err != nil {
			return fmt.Errorf("remove lease %s of a pull that a dead plugin process began: %w", lease.ID, err)
		}
	}
	return nil
}

// pullLabels are the labels for the image's record: a record that another program made keeps its own, so that we never
// take it for ours.
func (s *Store) pullLabels(ctx context.Context, source imageSource) (map[string]string, error) {
	record, err := s.client.ImageService().Get(ctx, source.reference)
	switch {
	case errdefs.IsNotFound(err):
		return map[string]string{naming.Owned: naming.PluginName}, nil
	case err != nil:
		return nil, s.client.Recoverable(fmt.Errorf("look for image %q in containerd: %w", source.given, err))
	}
	return record.Labels, nil
}

// resolver talks to registries as containerd's own tools do: by the hosts.toml of a registry where the operator has
// one, else by HTTPS, and by plain HTTP to a registry on this machine.
func (s *Store) resolver(ctx context.Context, search *credentialSearch, prog *progress) remotes.Resolver {
	options := config.HostOptions{Credentials: search.of, UpdateClient: prog.meter}
	if dir := s.config.RegistryHostsDir; dir != "" {
		options.HostDir = config.HostDirFromRoot(filepath.Clean(dir))
	}
	return checkedResolver{docker.NewResolver(docker.ResolverOptions{Hosts: config.ConfigureHosts(ctx, options)})}
}

// errWebPage is the error of a pull where a network wants its users to log in first.
var errWebPage = errors.New("instead of the registry a web page answered, as of a proxy or the login of a network; check the " +
	"network and the registry's address")

// checkedResolver is a resolver that takes no web page for an image: containerd's client would write it down as one.
type checkedResolver struct{ remotes.Resolver }

// Resolve implements remotes.Resolver.
func (r checkedResolver) Resolve(ctx context.Context, ref string) (name string, desc ocispec.Descriptor, err error) {
	name, desc, err = r.Resolver.Resolve(ctx, ref)
	if err == nil && desc.MediaType == "text/html" {
		err = fmt.Errorf("%s: %w", ref, errWebPage)
	}
	return name, desc, err
}

// pullError says what is wrong with a pull, what to do, and whether another try can help.
func (s *Store) pullError(p *pull, search *credentialSearch, err error) error {
	if failure := search.failure(); failure != nil {
		return recoverable.Error(fmt.Errorf("pull image %q: %w; mend this, or set auth_soft_fail to pull without",
			p.source.given, failure))
	}
	return explainPull(p.source, p.options.platformName(), search.used(), err)
}

// explainPull finds words for an error. credentials says where those came from that the registry was given.
func explainPull(source imageSource, platform, credentials string, err error) error {
	err = withoutQueries{err}
	recoverable := func(format string, args ...any) error {
		return recoverable.Error(fmt.Errorf("pull image %q: "+format, append([]any{source.given}, args...)...))
	}
	status := registryStatus(err)
	refused := status == http.StatusUnauthorized || status == http.StatusForbidden
	switch {
	case client.IsDiskFull(err):
		return noSpace(fmt.Errorf("pull image %q: %w", source.given, err))
	case errors.Is(err, errTooLarge):
		return fmt.Errorf("pull image %q: %w", source.given, err)
	case refused && credentials != "":
		return fmt.Errorf("pull image %q: the registry refuses %s with the credentials from %s: %w", source.given,
			source.reference, credentials, err)
	case refused:
		return fmt.Errorf("pull image %q: the registry does not give %s to this node without credentials, or has no "+
			"such image: %w", source.given, source.reference, err)
	case status == http.StatusTooManyRequests:
		return recoverable("the registry limits how often this node may pull; try later, pull with credentials, or set up "+
			"a mirror: %w", err)
	case status != 0 && status != http.StatusNotFound:
		return recoverable("the registry failed: %w", err)
	case client.IsUnavailable(err):
		return recoverable("containerd became unavailable: %w", err)
	case isBroken(err):
		return fmt.Errorf("pull image %q: the image is broken, build and push it again: %w", source.given, err)
	case errors.Is(err, errWebPage):
		return recoverable("%w", err)
	case errdefs.IsNotFound(err) && strings.Contains(err.Error(), "no match for platform"):
		return fmt.Errorf("pull image %q: it has nothing for %s; check the option platform: %w", source.given, platform, err)
	case errdefs.IsNotFound(err):
		return fmt.Errorf("pull image %q: the registry has no %s; check name and tag: %w", source.given,
			source.reference, err)
	}
	return recoverable("%w", err)
}

// brokenImages are parts of the errors of images that nobody can unpack. containerd has them in text only. All that was fetched
// has the digest that the manifest says, so that to fetch it again changes nothing.
var brokenImages = []string{
	"number of layers and diffIDs don't match", "mismatched image rootfs and manifest layers", "wrong diff id",
	"unmarshal image config", "invalid tar header", "gzip: invalid", "magic number mismatch",
}

// isBroken reports whether a pull failed because of the image itself.
func isBroken(err error) bool {
	text := err.Error()
	return slices.ContainsFunc(brokenImages, func(part string) bool { return strings.Contains(text, part) }) ||
		strings.Contains(text, "failed to extract layer") && strings.Contains(text, "unexpected EOF")
}

// noSpace adds what to do where an error is about a full disk.
func noSpace(err error) error {
	if !client.IsDiskFull(err) {
		return err
	}
	return recoverable.Error(fmt.Errorf("%w; the disk with containerd's root directory is full: free space there, "+
		"for example by removing images that nothing needs, or shorten the plugin's gc.image_delay", err))
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
