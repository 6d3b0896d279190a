package driver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/plugins"
)

// checkSnapshotter says what is wrong if containerd does not have the snapshotter of the plugin's configuration. That
// it cannot be asked is for others to say.
func (d *Driver) checkSnapshotter(ctx context.Context) error {
	found, err := d.client.IntrospectionService().Plugins(ctx, "type=="+plugins.SnapshotPlugin.String())
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	var ready []string
	why := "containerd at " + d.config.ContainerdAddress + " has none of this name"
	for _, plugin := range found.GetPlugins() {
		switch initErr := plugin.GetInitErr(); {
		case initErr == nil && plugin.GetID() == d.config.Snapshotter:
			return nil
		case initErr == nil:
			ready = append(ready, plugin.GetID())
		case plugin.GetID() == d.config.Snapshotter:
			why = "containerd at " + d.config.ContainerdAddress + " could not load it: " + initErr.GetMessage()
		}
	}
	slices.Sort(ready)
	return fmt.Errorf("plugin option snapshotter = %q: %s; it may be one of %s, or a snapshotter that runs by itself and "+
		"stands under proxy_plugins in containerd's configuration", d.config.Snapshotter, why, strings.Join(ready, ", "))
}
