package client

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/plugins"
)

// CheckSnapshotter returns an error if containerd does not have the configured snapshotter. That containerd cannot be
// reached is not an error here: other calls report it.
func (c *Client) CheckSnapshotter(ctx context.Context) error {
	found, err := c.IntrospectionService().Plugins(ctx, "type=="+plugins.SnapshotPlugin.String())
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	var ready []string
	why := "containerd at " + c.Address + " has none of this name"
	for _, plugin := range found.GetPlugins() {
		switch initErr := plugin.GetInitErr(); {
		case initErr == nil && plugin.GetID() == c.Snapshotter:
			return nil
		case initErr == nil:
			ready = append(ready, plugin.GetID())
		case plugin.GetID() == c.Snapshotter:
			why = "containerd at " + c.Address + " could not load it: " + initErr.GetMessage()
		}
	}
	slices.Sort(ready)
	return fmt.Errorf("plugin option snapshotter = %q: %s; it may be one of %s, or a snapshotter that runs by itself and "+
		"is in proxy_plugins of containerd's configuration", c.Snapshotter, why, strings.Join(ready, ", "))
}
