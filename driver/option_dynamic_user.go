package driver

import (
	"math"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// dynamicUserPrefix is what Nomad puts before the number of a user that it makes up for a task.
const dynamicUserPrefix = "nomad-"

// dynamicUser is the ID that Nomad has set aside for a task, where the operator lets it: the user "nomad-80123" is that
// user and group, and no name in the image.
func (c *Config) dynamicUser(user string) (uint32, bool) {
	digits, ok := strings.CutPrefix(user, dynamicUserPrefix)
	if !ok || !c.DynamicWorkloadUsers {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 32)
	return uint32(id), err == nil && id <= math.MaxInt32
}

// withTaskUser sets the user, as withUser does, or the one that Nomad made up for the task. About that the image is not
// asked: it could have a user with that number, and groups for it.
func (d *Driver) withTaskUser(task, imageUser, image string) oci.SpecOpts {
	if id, ok := d.config.dynamicUser(task); ok {
		return oci.WithUIDGID(id, id)
	}
	return withUser(task, imageUser, image)
}
