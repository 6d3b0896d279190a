//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// TestCSI has a CSI plugin run as a task of the driver and make a volume for another one, which the plugin mounts while both run.
func TestCSI(t *testing.T) {
	const image = "tranche.local/csiplugin:test"
	at, err := os.MkdirTemp("/run", "nomad-")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.Remove(at)) })
	n := startNode(t, func(c *node.Config) {
		c.DriverConfig, c.DataAt = "allow_privileged = true\n", at
		c.BeforeAgent = func(_ context.Context, n *node.Node) error {
			// What the plugin mounts reaches the agent's directory, as on a host under systemd, where all mounts are shared.
			data := filepath.Join(n.Dir, "nomad")
			if err := os.MkdirAll(data, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(data, at, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			return unix.Mount("", at, "", unix.MS_SHARED, "")
		}
	})
	importProgram(t, n, image, "csiplugin")
	start(t, n, task{job: "plugin", image: image, command: "csiplugin", args: []string{"/csi/csi.sock", "/alloc/data"},
		configExtra: "privileged = true", taskExtra: "csi_plugin {\n id = \"directories\"\n type = \"node\"\n mount_dir = \"/csi\"\n}"})
	running(t, n, "plugin")
	must.NoError(t, until(deadline(t), func() (bool, error) {
		plugin, _, err := n.Agent.API.CSIPlugins().Info("directories", nil)
		return err == nil && plugin.NodesHealthy == 1, nil
	}), must.Sprint("the plugin is not healthy"))
	_, err = n.Agent.API.CSIVolumes().Register(&api.CSIVolume{ID: "data", Name: "data", ExternalID: "vol-1", PluginID: "directories",
		RequestedCapabilities: []*api.CSIVolumeCapability{{AccessMode: "multi-node-multi-writer", AttachmentMode: "file-system"}}}, nil)
	must.NoError(t, err)

	use := func(job, script string, readonly bool) string {
		t.Helper()
		return completed(t, n, task{job: job, command: "sh", args: []string{"-c", script},
			groupExtra: fmt.Sprintf("volume \"v\" {\n type = \"csi\"\n source = \"data\"\n read_only = %v\n"+
				" access_mode = \"multi-node-multi-writer\"\n attachment_mode = \"file-system\"\n}", readonly),
			taskExtra: "volume_mount {\n volume = \"v\"\n destination = \"/srv\"\n}"})
	}
	must.Eq(t, "written\n", use("writer", "echo written >/srv/f && cat /srv/f", false))
	must.Eq(t, "written\nread-only\n", use("reader", "cat /srv/f; touch /srv/g 2>/dev/null || echo read-only", true))
	must.NoError(t, n.StopJob(deadline(t), "plugin"))
}
