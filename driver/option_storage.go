package driver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/tranche-gpu/tranche/driver/image"
)

// Where Nomad's task directories lie in a container: NOMAD_ALLOC_DIR, NOMAD_TASK_DIR and NOMAD_SECRETS_DIR name these
// for drivers with image isolation. The variables themselves a job's env block could have changed.
const (
	allocDirInContainer   = "/alloc"
	localDirInContainer   = "/local"
	secretsDirInContainer = "/secrets"
)

// storage is what a task's container gets mounted by the options mount, mounts, volumes, tmpfs and image_volumes.
type storage struct {
	mounts []specs.Mount
	// relabels are the sources that get a label of SELinux.
	relabels []relabel
}

// prepareStorage makes ready what the task's container gets mounted. release lets go of what is needed only until the
// container has started.
func (d *Driver) prepareStorage(ctx context.Context, s *startup, i *image.Image) (release func(), err error) {
	wanted, err := s.options.wantedMounts(&d.config)
	if err != nil {
		return nil, err
	}
	fromImage, err := imageVolumes(i.Process, s.options.ImageVolumes, takenTargets(s.cfg, wanted))
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", i.Given, err)
	}
	sources := &mountSources{driver: d, startup: s, tree: &imageTree{driver: d, startup: s, image: i}}
	defer func() {
		if closeErr := sources.tree.close(ctx); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		if err != nil {
			sources.release()
			err = d.client.Recoverable(err)
		}
	}()
	s.storage = storage{relabels: taskDirRelabels(s.cfg, d.config.Volumes.SelinuxLabel)}
	for _, m := range s.cfg.Mounts {
		if err := checkPropagates(m.HostPath, propagation[m.PropagationMode]); err != nil {
			return nil, fmt.Errorf("volume_mount at %s: propagation_mode = %q: %w", m.TaskPath, m.PropagationMode, err)
		}
	}
	for _, w := range append(wanted, fromImage...) {
		m, err := sources.mount(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.option, err)
		}
		s.storage.add(m, w, d.config.Volumes.SelinuxLabel)
	}
	return sources.release, nil
}

// sweepStorage removes what a plugin left that was killed while it prepared mounts.
func (d *Driver) sweepStorage() {
	err := errors.Join(sweepPins(d.grants.config.RunDir), sweepVolumeDrafts(d.config.volumeDir()))
	if err != nil {
		d.logger.Warn("something of mounts that an earlier life of the plugin prepared is still there", "error", err)
	}
}

// add takes a mount in. A volume of our making gets the plugin's label.
func (st *storage) add(m specs.Mount, w wantedMount, pluginLabel string) {
	st.mounts = append(st.mounts, m)
	label := w.relabel
	if w.kind == mountVolume && label == "" {
		label = pluginLabel
	}
	if label != "" && w.kind != mountTmpfs {
		st.relabels = append(st.relabels, relabel{path: m.Source, shared: label == relabelShared})
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

// withStorage mounts what prepareStorage has made ready.
func withStorage(st *storage) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		for _, m := range st.mounts {
			addMount(s, m)
		}
		return nil
	})
}

// withMountOrder puts mounts below others after them, whoever has asked for them: a mount at /data would else cover the
// one at /data/cache. Where two are at the same place, such as the host's name servers and a job's own
// /etc/resolv.conf, the later one stays the later one.
func withMountOrder() oci.SpecOpts {
	return specOption(func(s *Spec) error {
		depth := func(m specs.Mount) int { return strings.Count(path.Clean(m.Destination), "/") }
		slices.SortStableFunc(s.Mounts, func(a, b specs.Mount) int { return depth(a) - depth(b) })
		return nil
	})
}

// withTaskDirs mounts the alloc, local and secrets directories.
func withTaskDirs(cfg *drivers.TaskConfig) oci.SpecOpts {
	dirs := cfg.TaskDir()
	return oci.WithMounts([]specs.Mount{
		bind(dirs.SharedAllocDir, allocDirInContainer, "rprivate", false),
		bind(dirs.LocalDir, localDirInContainer, "rprivate", false),
		bind(dirs.SecretsDir, secretsDirInContainer, "rprivate", false),
	})
}

// propagation maps the propagation_mode of a volume_mount to the mount option.
var propagation = map[string]string{
	"":              "rprivate",
	"private":       "rprivate",
	"host-to-task":  "rslave",
	"bidirectional": "rshared",
}

// withVolumes mounts what the agent hands over: volume_mount blocks, and mounts of device plugins.
func withVolumes(cfg *drivers.TaskConfig) oci.SpecOpts {
	return specOption(func(s *Spec) error {
		for _, m := range cfg.Mounts {
			mode, ok := propagation[m.PropagationMode]
			if !ok {
				return fmt.Errorf("mount at %s: propagation_mode = %q: must be \"private\", \"host-to-task\" or "+
					"\"bidirectional\"", m.TaskPath, m.PropagationMode)
			}
			addMount(s, bind(m.HostPath, m.TaskPath, mode, m.Readonly))
		}
		return nil
	})
}

// addMount adds a mount, and lets the container's root propagate what the mount is to: runc makes everything a slave of
// the host's unless the spec says otherwise, and then a mount that is made inside stays inside.
func addMount(s *Spec, m specs.Mount) {
	s.Mounts = append(s.Mounts, m)
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	switch {
	case slices.ContainsFunc(m.Options, toHost):
		s.Linux.RootfsPropagation = "rshared"
	case slices.ContainsFunc(m.Options, fromHost) && s.Linux.RootfsPropagation == "":
		s.Linux.RootfsPropagation = "rslave"
	}
}

// toHost says whether mounts that are made in the container are to be seen on the host, and those of the host inside;
// fromHost whether the latter alone.
func toHost(propagation string) bool   { return propagation == "shared" || propagation == "rshared" }
func fromHost(propagation string) bool { return propagation == "slave" || propagation == "rslave" }

// checkPropagates makes sure that the host's mount in which a source lies propagates at all. Where it does not, the task
// would run, and mounts would silently not be seen.
func checkPropagates(source, propagation string) error {
	if !toHost(propagation) && !fromHost(propagation) {
		return nil
	}
	info, err := mount.Lookup(source)
	if err != nil {
		return fmt.Errorf("look up the mount in which %s lies: %w", source, err)
	}
	if strings.Contains(info.Optional, "shared:") || fromHost(propagation) && strings.Contains(info.Optional, "master:") {
		return nil
	}
	return fmt.Errorf("%s lies in the mount at %s, which does not propagate; make it shared on the host: "+
		"mount --make-shared %[2]s", source, info.Mountpoint)
}

func bind(host, container, propagation string, readonly bool) specs.Mount {
	access := "rw"
	if readonly {
		access = "ro"
	}
	return specs.Mount{
		Type:        mountBind,
		Source:      host,
		Destination: container,
		Options:     []string{"rbind", propagation, access},
	}
}

// checkStorage checks the options about mounts and volumes.
func (c *TaskConfig) checkStorage(plugin *Config) error {
	_, err := c.wantedMounts(plugin)
	return errors.Join(err, c.checkImageVolumes())
}
