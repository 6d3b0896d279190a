// Package storage prepares the mounts of a task's container: task directories, host paths, named and anonymous volumes,
// tmpfs and the volumes of its image. It must not start containers.
package storage

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/client"
	"github.com/tranche-gpu/tranche/driver/image"
	"github.com/tranche-gpu/tranche/internal/keylock"
)

// Where Nomad's task directories lie in a container: NOMAD_ALLOC_DIR, NOMAD_TASK_DIR and NOMAD_SECRETS_DIR name these
// for drivers with image isolation. The variables themselves a job's env block could have changed.
const (
	allocDirInContainer   = "/alloc"
	localDirInContainer   = "/local"
	secretsDirInContainer = "/secrets"
)

// Policy is what the operator allows.
type Policy struct {
	// Enabled lets tasks mount named volumes and paths of the host.
	Enabled bool
	// SelinuxLabel is "z" (shared), "Z" (private) or empty: how the sources of mounts are labelled that say nothing.
	SelinuxLabel string
}

// Config is what Storage needs.
type Config struct {
	Policy
	Client *client.Client
	Logger hclog.Logger
	// VolumeDir has the named volumes. RunDir is a directory that only root can write to.
	VolumeDir, RunDir string
}

// Storage makes mounts ready.
type Storage struct {
	config Config
	client *client.Client
	// volumes has a lock per named volume that is being made.
	volumes keylock.Locks
}

// New returns a Storage.
func New(config Config) *Storage { return &Storage{config: config, client: config.Client} }

// Request is a request for the mounts of a task. Its options have been checked.
type Request struct {
	Task        *drivers.TaskConfig
	ContainerID string
	Options     Options
	Image       *image.Image
	// HandOver gives a directory that was made for the container, with what is in it, to the container's own IDs; nil where it
	// has none.
	HandOver func(dir string) error
}

func (r *Request) handOver(dir string) error {
	if r.HandOver == nil {
		return nil
	}
	if err := r.HandOver(dir); err != nil {
		return fmt.Errorf("give the new directory to the IDs of the task's user namespace: %w", err)
	}
	return nil
}

// Prepared is what a container mounts.
type Prepared struct {
	mounts []specs.Mount
	// relabels are the sources that get an SELinux label.
	relabels []relabel
	sources  *mountSources
}

// Release releases what is needed only until the container has started.
func (p *Prepared) Release() { p.sources.release() }

// Prepare makes ready what the task's container mounts. If it fails, nothing is left to release.
func (s *Storage) Prepare(ctx context.Context, r *Request) (_ *Prepared, err error) {
	wanted, err := r.Options.wantedMounts(s.config.Policy)
	if err != nil {
		return nil, err
	}
	fromImage, err := imageVolumes(r.Image.Process, r.Options.ImageVolumes, takenTargets(r.Task, wanted))
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", r.Image.Given, err)
	}
	sources := &mountSources{storage: s, request: r, tree: &imageTree{storage: s, request: r}}
	defer func() {
		if closeErr := sources.tree.close(ctx); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		if err != nil {
			sources.release()
			err = s.client.Recoverable(err)
		}
	}()
	p := &Prepared{relabels: taskDirRelabels(r.Task, s.config.SelinuxLabel), sources: sources}
	for _, m := range r.Task.Mounts {
		if err := checkPropagates(m.HostPath, propagation[m.PropagationMode]); err != nil {
			return nil, fmt.Errorf("volume_mount at %s: propagation_mode = %q: %w", m.TaskPath, m.PropagationMode, err)
		}
	}
	logs, err := sources.logs()
	if err != nil {
		return nil, err
	}
	p.mounts = append(p.mounts, logs)
	for _, w := range append(wanted, fromImage...) {
		m, err := sources.mount(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.option, err)
		}
		p.add(m, w, s.config.SelinuxLabel)
	}
	return p, nil
}

// Sweep removes what a plugin process left that was killed while it prepared mounts.
func (s *Storage) Sweep() {
	err := errors.Join(sweepPinned(s.config.RunDir), sweepVolumeDrafts(s.config.VolumeDir))
	if err != nil {
		s.config.Logger.Warn("cannot remove all mounts that an earlier plugin process prepared", "error", err)
	}
}

// add adds a mount. A volume that the driver makes gets the plugin's label.
func (p *Prepared) add(m specs.Mount, w wantedMount, pluginLabel string) {
	p.mounts = append(p.mounts, m)
	label := w.relabel
	if w.kind == mountVolume && label == "" {
		label = pluginLabel
	}
	if label != "" && w.kind != mountTmpfs {
		p.relabels = append(p.relabels, relabel{path: m.Source, shared: label == relabelShared})
	}
}

// takenTargets are the paths in the container at which the job mounts something, and Nomad for it.
func takenTargets(cfg *drivers.TaskConfig, wanted []wantedMount) map[string]bool {
	taken := map[string]bool{allocDirInContainer: true, localDirInContainer: true, secretsDirInContainer: true}
	for _, m := range cfg.Mounts {
		taken[path.Clean(m.TaskPath)] = true
	}
	for _, w := range wanted {
		taken[w.target] = true
	}
	return taken
}
