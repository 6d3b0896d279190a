//go:build e2e

package vm_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// fill is a job whose program takes all memory that it gets. It then launches kernels without end, for which it needs little of a
// processor.
func fill(name string, slices int) job {
	return job{
		name: name, image: probeImage, command: "gpu-probe", args: []string{"fill"}, slices: slices, config: "cpu_hard_limit = true",
	}
}

// checkLimit has a task at its limit.
func checkLimit(t *testing.T, m *machine) {
	alloc := m.start(t, fill("limit", 2))
	m.says(t, alloc.ID, "computing")
	m.mustHoldExactly(t, m.pid(t, alloc.ID), 2*gib)
}

// sharesTolerance is in points: the machine has two emulated processors.
const sharesTolerance = 15

// checkShares has two tasks compute in turns, in proportion to their slices.
func checkShares(t *testing.T, m *machine) {
	small, large := m.load(t, "small", 42), m.load(t, "large", 98)
	m.comesTo(t, 30, small, large)
}

// load starts a job that always wants the GPU, with kernels that take much longer than their launch by an emulated processor,
// and returns its first process.
func (m *machine) load(t *testing.T, name string, slices int) (pid string) {
	t.Helper()
	args := []string{"--kernel", "20000", "--depth", "4", "--ready"}
	alloc := m.start(t, job{name: name, image: loadImage, command: "load", args: args, slices: slices})
	m.says(t, alloc.ID, "ready")
	return m.pid(t, alloc.ID)
}

// comesTo waits until a container's part of what two of them have of the GPU's time is as expected, in percent.
func (m *machine) comesTo(t *testing.T, want float64, one, other string) {
	t.Helper()
	ctx := deadline(t)
	for {
		mine, its := m.held(t, one).BusyNS, m.held(t, other).BusyNS
		time.Sleep(5 * time.Second) // what happens in this time is what is judged
		mine, its = m.held(t, one).BusyNS-mine, m.held(t, other).BusyNS-its
		part := 100 * float64(mine) / float64(mine+its)
		t.Logf("%.1f%%, expected %.0f%%", part, want)
		if math.Abs(part-want) <= sharesTolerance {
			return
		}
		must.NoError(t, ctx.Err(), must.Sprintf("the part is %.1f%%, not %.0f%%", part, want))
	}
}

// engine is a container engine beside Nomad, by its command, and what its run needs.
type engine struct{ command, options string }

var (
	docker = engine{"docker", "--runtime tranche"}
	podman = engine{"podman --runtime tranche", ""}
)

func installEngines(t *testing.T, m *machine) { m.run(t, "sh /media/engines.sh 2>&1") }

// fill starts a container whose program takes all memory that it gets, and returns its first process. It is removed after the test.
func (e engine) fill(t *testing.T, m *machine, name, options string) (pid string) {
	t.Helper()
	t.Cleanup(func() { m.run(t, "%s rm --force %s", e.command, name) })
	m.run(t, "%s run --detach --name %s --cpus 0.2 %s %s --env TRANCHE_GPU_MEMORY=1GiB %s gpu-probe fill", e.command, name, e.options, options, probeImage)
	m.until(t, "%s logs %s 2>&1 | grep --quiet computing", e.command, name)
	return e.pid(t, m, name)
}

func (e engine) pid(t *testing.T, m *machine, name string) string {
	t.Helper()
	return m.run(t, "%s inspect --format {{.State.Pid}} %s", e.command, name)
}

// checkEngine has a container at its limit, whose cgroup systemd makes.
func checkEngine(e engine) func(*testing.T, *machine) {
	return func(t *testing.T, m *machine) {
		pid := e.fill(t, m, "limit", "--memory 256m --pids-limit 100")
		m.mustHoldExactly(t, pid, gib)
		cgroup := m.cgroup(t, pid)
		must.StrContains(t, cgroup, ".scope")
		must.Eq(t, fmt.Sprint(256<<20), m.run(t, "cat %s/memory.max", cgroup))
		must.Eq(t, "100 20000 100000", m.run(t, "cd %s; echo $(cat pids.max cpu.max)", cgroup))
	}
}

// cgroup is the directory of a process's cgroup.
func (m *machine) cgroup(t *testing.T, pid string) string {
	t.Helper()
	return "/sys/fs/cgroup" + m.run(t, "cut --delimiter : --fields 3 /proc/%s/cgroup", pid)
}
