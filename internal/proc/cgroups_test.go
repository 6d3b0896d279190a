package proc

import (
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestParseCgroups(t *testing.T) {
	must.Eq(t, map[int]string{0: "/a:b/c d", 3: "/"}, parseCgroups("3:cpu,cpuacct:/\n0::/a:b/c d\n"))
	must.Eq(t, map[int]string{}, parseCgroups("x:cpu:/\n7\n\n"))
}

// As the kernel says it.
func TestCgroups(t *testing.T) {
	text, err := os.ReadFile("/proc/self/cgroup")
	must.NoError(t, err)
	groups, err := Cgroups(os.Getpid())
	must.NoError(t, err)
	must.Eq(t, strings.Count(string(text), "\n"), len(groups))
	_, err = Cgroups(1 << 30)
	must.ErrorIs(t, err, os.ErrNotExist)
}
