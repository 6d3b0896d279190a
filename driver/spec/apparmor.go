package spec

import (
	"context"
	"fmt"
	"os"
	"strings"

	contribapparmor "github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// defaultAppArmorProfile is the name under which the driver loads containerd's default profile.
const defaultAppArmorProfile = "tranche-default"

// appArmorHost is what a node has of AppArmor.
type appArmorHost struct {
	supported func() bool
	// profiles lists the loaded profiles, a line for each.
	profiles string
	// withDefault sets the default profile, and loads it where it is not: a reload of the node's profiles may have
	// unloaded it since the last task.
	withDefault func(name string) oci.SpecOpts
}

var hostAppArmor = appArmorHost{
	supported:   apparmor.HostSupports,
	profiles:    "/sys/kernel/security/apparmor/profiles",
	withDefault: contribapparmor.WithDefaultProfile,
}

// withAppArmor confines the container by the profile that the task names, else, where the node has AppArmor, by
// containerd's default. A privileged task that names none is not confined.
func withAppArmor(options *TaskConfig, host appArmorHost) oci.SpecOpts {
	profile := options.security().apparmor
	switch {
	case !host.supported(), profile == "" && options.Privileged:
		return unchanged
	case profile != "":
		return oci.WithApparmorProfile(profile)
	}
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *Spec) error {
		if err := host.withDefault(defaultAppArmorProfile)(ctx, client, c, s); err != nil {
			return fmt.Errorf("load the AppArmor profile %s: %w; check apparmor_parser on the node", defaultAppArmorProfile, err)
		}
		return nil
	}
}

// checkAppArmor checks the AppArmor profile in security_opt. The runtime's error about a missing profile names no option.
func (o *securityOptions) checkAppArmor(host appArmorHost) error {
	if o.apparmor == "" || o.apparmor == unconfined {
		return nil
	}
	value := "apparmor=" + o.apparmor
	if !host.supported() {
		return fmt.Errorf("option security_opt = %q: this node has no AppArmor; leave it out or place the task elsewhere",
			value)
	}
	loaded, err := host.loaded()
	if err != nil {
		return fmt.Errorf("option security_opt = %q: list the node's profiles: %w", value, err)
	}
	if !loaded[o.apparmor] && o.apparmor != defaultAppArmorProfile {
		return fmt.Errorf("option security_opt = %q: no such profile is loaded on this node; it may be \"unconfined\" or "+
			"one that the operator loads with apparmor_parser", value)
	}
	return nil
}

// loaded are the names of the loaded profiles. A line is "NAME (MODE)".
func (h appArmorHost) loaded() (map[string]bool, error) {
	data, err := os.ReadFile(h.profiles)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if at := strings.LastIndex(line, " ("); at >= 0 {
			names[line[:at]] = true
		}
	}
	return names, nil
}
