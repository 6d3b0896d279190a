package spec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
)

// maxGroupID is the highest number of a group; the next one means none.
const maxGroupID = math.MaxUint32 - 1

// dynamicUserPrefix is what Nomad puts before the number of a user that it makes up for a task.
const dynamicUserPrefix = "nomad-"

// dynamicUser returns the ID that Nomad has set aside for a task, where the operator allows it: the user "nomad-80123" is that
// user and group, and no name in the image.
func (c *Config) dynamicUser(user string) (uint32, bool) {
	digits, ok := strings.CutPrefix(user, dynamicUserPrefix)
	if !ok || !c.DynamicWorkloadUsers {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 32)
	return uint32(id), err == nil && id <= math.MaxInt32
}

// withTaskUser sets the user, as withUser does, or the one that Nomad made up for the task. The image is not
// looked up for that: it could have a user with that number, and groups for it.
func withTaskUser(task, imageUser, image string, plugin *Config) oci.SpecOpts {
	if id, ok := plugin.dynamicUser(task); ok {
		return oci.WithUIDGID(id, id)
	}
	return withUser(task, imageUser, image)
}

// withUser sets the user by name or number, with or without a group: the task's, else the image's. The image's
// files say who users and groups are.
func withUser(task, imageUser, image string) oci.SpecOpts {
	user, whose := task, "the task's user"
	if user == "" {
		user, whose = imageUser, "the image's USER"
	}
	if user == "" {
		return oci.WithUIDGID(0, 0)
	}
	name, _, _ := strings.Cut(user, ":")
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *Spec) error {
		if err := oci.WithUser(user)(ctx, client, c, s); err != nil {
			return fmt.Errorf("%s %q is not in image %q: %w; add it to the image's /etc/passwd (and "+
				"/etc/group), or use a number", whose, user, image, err)
		}
		if err := oci.WithAdditionalGIDs(name)(ctx, client, c, s); err != nil {
			return fmt.Errorf("look up the groups of user %q in image %q: %w", user, image, err)
		}
		return nil
	}
}

// withGroups adds further groups, by name in the image's /etc/group or by number. It is applied after withUser, which sets
// those that the user has.
func withGroups(groups []string, image string) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *Spec) error {
		if len(groups) == 0 {
			return nil
		}
		if err := oci.WithAppendAdditionalGroups(groups...)(ctx, client, c, s); err != nil {
			return fmt.Errorf("option group_add = %q: %w in image %q; a group must be in the image's /etc/group, or be given by "+
				"number", groups, err, image)
		}
		return nil
	}
}

// checkGroupAdd checks what can be checked without the image.
func (c *TaskConfig) checkGroupAdd() error {
	for _, group := range c.GroupAdd {
		number, err := strconv.ParseInt(group, 10, 64)
		if group == "" || err == nil && (number < 0 || number > maxGroupID) || errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("option group_add: %q: must be the name of a group in the image, or a number from 0 to %d", group,
				int64(maxGroupID))
		}
	}
	return nil
}
