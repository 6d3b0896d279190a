package storage

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// specOption makes an option of a function that needs nothing but the spec.
func specOption(edit func(*specs.Spec) error) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error { return edit(s) }
}

// WithMounts mounts what Prepare has made ready.
func (p *Prepared) WithMounts() oci.SpecOpts {
	return specOption(func(s *specs.Spec) error {
		for _, m := range p.mounts {
			addMount(s, m)
		}
		return nil
	})
}

// WithMountOrder puts mounts below others after them, whoever has asked for them: a mount at /data would else cover the
// one at /data/cache. Where two are at the same place, such as the host's name servers and a job's own
// /etc/resolv.conf, the later one stays the later one.
func WithMountOrder() oci.SpecOpts {
	return specOption(func(s *specs.Spec) error {
		depth := func(m specs.Mount) int { return strings.Count(path.Clean(m.Destination), "/") }
		slices.SortStableFunc(s.Mounts, func(a, b specs.Mount) int { return depth(a) - depth(b) })
		return nil
	})
}

// WithTaskDirs mounts the alloc, local and secrets directories.
func WithTaskDirs(cfg *drivers.TaskConfig) oci.SpecOpts {
	dirs := cfg.TaskDir()
	return oci.WithMounts([]specs.Mount{
		Bind(dirs.SharedAllocDir, allocDirInContainer, "rprivate", false),
		Bind(dirs.LocalDir, localDirInContainer, "rprivate", false),
		Bind(dirs.SecretsDir, secretsDirInContainer, "rprivate", false),
	})
}

// Private is the propagation of mounts that say nothing.
const Private = "rprivate"

// propagation maps the propagation_mode of a volume_mount to the mount option.
var propagation = map[string]string{
	"":              Private,
	"private":       Private,
	"host-to-task":  "rslave",
	"bidirectional": "rshared",
}

// WithVolumes mounts what the agent hands over: volume_mount blocks, and mounts of device plugins.
func WithVolumes(cfg *drivers.TaskConfig) oci.SpecOpts {
	return specOption(func(s *specs.Spec) error {
		for _, m := range cfg.Mounts {
			mode, ok := propagation[m.PropagationMode]
			if !ok {
				return fmt.Errorf("mount at %s: propagation_mode = %q: must be \"private\", \"host-to-task\" or "+
					"\"bidirectional\"", m.TaskPath, m.PropagationMode)
			}
			addMount(s, Bind(m.HostPath, m.TaskPath, mode, m.Readonly))
		}
		return nil
	})
}

// addMount adds a mount, and lets the container's root propagate what the mount is to: runc makes everything a slave of
// the host's unless the spec says otherwise, and then a mount that is made inside stays inside.
func addMount(s *specs.Spec, m specs.Mount) {
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

// toHost reports whether mounts that are made in the container are to be seen on the host, and those of the host inside;
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

// Bind returns a recursive bind mount.
func Bind(host, container, propagation string, readonly bool) specs.Mount {
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
