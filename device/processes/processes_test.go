package processes

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
)

// What is in a container's cgroup is in the container; what is in none, if it descends from its init process or shares its PID
// namespace.
func TestContainers_Inside(t *testing.T) {
	init := info{pid: 20, pidNamespace: "box", cgroups: map[int]string{0: "/task", 1: "/"}}
	for name, tc := range map[string]struct {
		process info
		init    info
		want    bool
	}{
		"its PID namespace":           {info{pid: 30, pidNamespace: "box"}, init, true},
		"its cgroup":                  {info{pid: 30, pidNamespace: "inner", cgroups: map[int]string{0: "/task"}}, init, true},
		"below its cgroup":            {info{pid: 30, cgroups: map[int]string{0: "/task/sub"}}, init, true},
		"a name that begins the same": {info{pid: 30, cgroups: map[int]string{0: "/task2"}}, init, false},
		"a cgroup that containers have in common": {info{pid: 30, cgroups: map[int]string{0: "/other", 2: "/containers"}},
			info{pid: 20, cgroups: map[int]string{0: "/task", 2: "/containers"}}, false},
		"a cgroup that all are in": {info{pid: 30, cgroups: map[int]string{1: "/x"}}, init, false},
		"the host's PID namespace": {info{pid: 30, pidNamespace: "host"}, info{pid: 20, pidNamespace: "host"}, false},
		"the plugin's cgroup": {info{pid: 30, cgroups: map[int]string{0: "/nomad"}},
			info{pid: 20, cgroups: map[int]string{0: "/nomad"}}, false},
		"the init process": {info{pid: 20}, info{pid: 20}, true},
		"nothing known":    {info{pid: 30}, info{pid: 20}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Containers{self: info{pid: 10, pidNamespace: "host", cgroups: map[int]string{0: "/nomad", 1: "/"}},
				inits: []info{tc.init}, claims: []*claim.Claim{{ID: "one"}}}
			must.Eq(t, tc.want, len(m.of(&tc.process)) == 1)
		})
	}
}

// Of containers that share a PID namespace, the process's own cgroup decides.
func TestContainers_SharedPIDNamespace(t *testing.T) {
	first, second := &claim.Claim{ID: "a"}, &claim.Claim{ID: "b"}
	m := &Containers{inits: []info{
		{pid: 20, pidNamespace: "box", cgroups: map[int]string{0: "/first"}},
		{pid: 30, pidNamespace: "box", cgroups: map[int]string{0: "/second"}},
	}, claims: []*claim.Claim{first, second}}
	for name, tc := range map[string]struct {
		process info
		want    []*claim.Claim
	}{
		"in the first's cgroup":   {info{pid: 40, pidNamespace: "box", cgroups: map[int]string{0: "/first"}}, []*claim.Claim{first}},
		"in the second's cgroup":  {info{pid: 40, pidNamespace: "box", cgroups: map[int]string{0: "/second"}}, []*claim.Claim{second}},
		"moved, a descendant":     {info{pid: 40, pidNamespace: "box", lineage: []int{40, 30}, cgroups: map[int]string{0: "/"}}, []*claim.Claim{second}},
		"moved, no one's process": {info{pid: 40, pidNamespace: "box", cgroups: map[int]string{0: "/"}}, []*claim.Claim{first, second}},
	} {
		t.Run(name, func(t *testing.T) { must.Eq(t, tc.want, m.of(&tc.process)) })
	}
}

// As the kernel tells it.
func TestContainers_Kind(t *testing.T) {
	container := exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
	stdout, err := container.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, container.Start())
	var child int
	_, err = fmt.Fscan(stdout, &child)
	must.NoError(t, err)
	t.Cleanup(func() {
		if process, err := os.FindProcess(child); err == nil {
			_ = process.Kill()
		}
		_ = container.Wait()
	})
	other := exec.Command("sleep", "1000")
	must.NoError(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	m := Of([]*claim.Claim{{Container: &claim.Container{InitPID: container.Process.Pid}}})
	must.Eq(t, Claimed, m.Kind(container.Process.Pid))
	must.Eq(t, Claimed, m.Kind(child))
	must.Eq(t, Unmanaged, m.Kind(other.Process.Pid))
	must.Eq(t, Own, m.Kind(os.Getpid()))
	must.Eq(t, Ended, m.Kind(1<<30))
	must.Eq(t, Ended, m.Kind(0))

	// A command under `tranche run` is in the cgroups of its session, of which the plugin is not.
	run := Of([]*claim.Claim{{Owner: claim.OwnerRun, Container: &claim.Container{InitPID: container.Process.Pid}}})
	must.MapEmpty(t, run.inits[0].cgroups)
	must.Eq(t, "", run.inits[0].pidNamespace)
	must.SliceLen(t, 1, run.Claims(child))
	must.SliceEmpty(t, run.Claims(other.Process.Pid))
	self, _ := read(os.Getpid())
	must.Eq(t, os.Getppid(), self.parent)
	must.StrHasPrefix(t, "pid:[", self.pidNamespace)
	must.True(t, strings.HasPrefix(executable(os.Getpid()), "/"))
}
