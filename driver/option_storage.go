package driver

import (
	"fmt"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Where Nomad's task directories lie in a container: NOMAD_ALLOC_DIR, NOMAD_TASK_DIR and NOMAD_SECRETS_DIR name these
// for drivers with image isolation. The variables themselves a job's env block could have changed.
const (
	allocDirInContainer   = "/alloc"
	localDirInContainer   = "/local"
	secretsDirInContainer = "/secrets"
)

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
			s.Mounts = append(s.Mounts, bind(m.HostPath, m.TaskPath, mode, m.Readonly))
		}
		return nil
	})
}

func bind(host, container, propagation string, readonly bool) specs.Mount {
	access := "rw"
	if readonly {
		access = "ro"
	}
	return specs.Mount{
		Type:        "bind",
		Source:      host,
		Destination: container,
		Options:     []string{"rbind", propagation, access},
	}
}

// checkStorage checks the options about mounts and volumes.
func (c *TaskConfig) checkStorage(*Config) error { return nil }
