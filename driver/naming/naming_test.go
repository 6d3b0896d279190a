package naming

import (
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

// validID is what containerd takes for an ID.
var validID = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$`)

func TestContainerID(t *testing.T) {
	id := func(alloc, task, taskID string) string {
		return ContainerID(&drivers.TaskConfig{AllocID: alloc, Name: task, ID: taskID})
	}
	const alloc = "01234567-89ab-cdef-0123-456789abcdef"
	must.Eq(t, id(alloc, "web", "x"), id(alloc, "web", "x"))
	must.NotEq(t, id(alloc, "web", "x"), id(alloc, "web", "y"))
	must.StrHasPrefix(t, alloc+"-web-", id(alloc, "web", "x"))
	for _, name := range []string{"web", "--we_b..x/y--", strings.Repeat("long", 40), "ünï", ""} {
		got := id(alloc, name, name)
		must.LessEq(t, maxIDLength, len(got))
		must.RegexMatch(t, validID, got)
	}
}
