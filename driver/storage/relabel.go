package storage

import (
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
)

// What may be asked of SELinux for the source of a mount, as docker writes it: a label with which every container may use
// the files, or only this one.
const (
	relabelShared  = "z"
	relabelPrivate = "Z"
)

// relabel is a source that gets the label of containers' files.
type relabel struct {
	path   string
	shared bool
}

// taskDirRelabels are the task's directories, which the plugin's volumes.selinuxlabel is about.
func taskDirRelabels(cfg *drivers.TaskConfig, pluginLabel string) []relabel {
	if pluginLabel == "" {
		return nil
	}
	dirs, shared := cfg.TaskDir(), pluginLabel == relabelShared
	return []relabel{
		// The tasks of an allocation share this one, each with a label of its own.
		{dirs.SharedAllocDir, true}, {dirs.LocalDir, shared}, {dirs.SecretsDir, shared},
	}
}

// WithRelabels labels the sources of mounts where the host has SELinux. It is applied after the option that gives the
// container its label.
func (p *Prepared) WithRelabels() oci.SpecOpts {
	return specOption(func(s *specs.Spec) error {
		if len(p.relabels) == 0 || !selinux.GetEnabled() {
			return nil
		}
		mountLabel := s.Linux.MountLabel
		if mountLabel == "" {
			process, files, err := label.InitLabels(nil)
			if err != nil {
				return fmt.Errorf("query the SELinux label of containers' files: %w", err)
			}
			defer selinux.ReleaseLabel(process)
			mountLabel = files
		}
		return applyRelabels(p.relabels, mountLabel, label.Relabel)
	})
}

func applyRelabels(relabels []relabel, mountLabel string, change func(path, label string, shared bool) error) error {
	for _, r := range relabels {
		if err := change(r.path, mountLabel, r.shared); err != nil {
			return fmt.Errorf("give %s the SELinux label %q: %w", r.path, mountLabel, err)
		}
	}
	return nil
}
