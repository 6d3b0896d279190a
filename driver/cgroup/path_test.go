package cgroup

import (
	"path"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

// task returns a task for which Nomad names a cgroup.
func task(cpusetCgroupPath string) *drivers.TaskConfig {
	return &drivers.TaskConfig{AllocID: "alloc", Name: "web", Resources: &drivers.Resources{
		LinuxResources: &drivers.LinuxResources{CpusetCgroupPath: cpusetCgroupPath},
	}}
}

func TestPath(t *testing.T) {
	cases := []struct {
		name    string
		given   string
		unified bool
		want    string
	}{
		{"v1", "/sys/fs/cgroup/cpuset/nomad/share", false, "/nomad/alloc.web"},
		{"v1, a parent of the operator's", "/sys/fs/cgroup/cpuset/mine/share", false, "/mine/alloc.web"},
		{"v1, reserved cores", "/sys/fs/cgroup/cpuset/nomad/reserve/alloc.web", false, "/nomad/alloc.web"},
		{"v1, not said", "", false, "/nomad/alloc.web"},
		{"v2", "/sys/fs/cgroup/nomad.slice/share.slice/alloc.web.scope", true,
			"/nomad.slice/share.slice/alloc.web.scope"},
		{"v2, not said", "", true, "/nomad.slice/share.slice/alloc.web.scope"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := task(c.given)
			must.Eq(t, c.want, Path(cfg, c.unified))
		})
	}
	cfg := &drivers.TaskConfig{AllocID: "alloc", Name: "../../up"}
	must.Eq(t, "/nomad/alloc..._.._up", Path(cfg, false))
}

// Where Nomad itself puts a task's cgroup, the driver's container goes.
func TestPath_AsNomadHasIt(t *testing.T) {
	for _, reserved := range []bool{false, true} {
		given := cgroupslib.LinuxResourcesPath("alloc", "web", reserved)
		cfg := task(given)
		want := strings.TrimPrefix(given, Root)
		if cgroupslib.GetMode() == cgroupslib.CG1 {
			want = strings.TrimPrefix(cgroupslib.PathCG1("alloc", "web", "memory"), path.Join(Root, "memory"))
		}
		must.Eq(t, want, Path(cfg, cgroupslib.GetMode() != cgroupslib.CG1))
	}
}

func TestJoinCpuset_LeavesOthersAlone(t *testing.T) {
	for _, given := range []string{"", "/sys/fs/cgroup/nomad.slice/share.slice/alloc.web.scope",
		"/sys/fs/cgroup/cpuset/no-such-parent/share", "/sys/fs/cgroup/cpuset/../../../../tmp"} {
		must.NoError(t, JoinCpuset(task(given), 1))
	}
	must.NoError(t, JoinCpuset(&drivers.TaskConfig{}, 1))
}
