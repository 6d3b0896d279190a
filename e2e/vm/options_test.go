//go:build e2e

package vm_test

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/node"
)

// checkOptions has the limits of a task in the cgroup that Nomad made for it, which is the root of what the task sees.
func checkOptions(t *testing.T, m *machine) {
	j := fill("options", 1)
	j.config += "\npids_limit = 50\nmemory_swap = \"96MiB\""
	j.resources = "memory = 64"
	alloc := m.start(t, j)
	cgroup := m.cgroup(t, m.pid(t, alloc.ID))
	must.Eq(t, "/sys/fs/cgroup/nomad.slice/share.slice/"+alloc.ID+".t.scope", cgroup)
	must.Eq(t, "67108864 33554432 50", m.run(t, "cd %s; echo $(cat memory.max memory.swap.max pids.max)", cgroup))
	must.StrNotContains(t, m.run(t, "cat %s/cpu.max", cgroup), "max")
	must.NotEq(t, "100", m.run(t, "cat %s/cpu.weight", cgroup)) // the kernel's default
	must.Eq(t, "0::/ 67108864", m.alloc(t, alloc.ID, "echo $(cat /proc/self/cgroup /sys/fs/cgroup/memory.max)"))

	j = fill("swappiness", 1)
	j.config = "memory_swappiness = 10"
	m.fails(t, j, "this node has cgroup v2")
}

// alloc runs a shell script in a task, as `nomad alloc exec` does, and returns its output.
func (m *machine) alloc(t *testing.T, allocID, script string) string {
	t.Helper()
	return m.run(t, "nomad alloc exec -i=false -t=false -task t %s sh -c '%s'", allocID, script)
}

// fails runs a job whose task fails, with a text in what Nomad says of it.
func (m *machine) fails(t *testing.T, j job, text string) {
	t.Helper()
	alloc := m.submit(t, j, "failed")
	must.StrContains(t, node.Story(alloc), text)
}

// checkOOM has the kernel end a task that needs more of the node's memory than it has.
func checkOOM(t *testing.T, m *machine) {
	j := job{name: "oom", image: probeImage, command: "tail", args: []string{"/dev/zero"}, slices: 1, resources: "memory = 32", batch: true}
	m.fails(t, j, "Out of memory: the kernel ended a process of the task at its limit of 32 MiB")
}

// checkExec has a command in a task, with the task's GPU and limit, in its cgroup.
func checkExec(t *testing.T, m *machine) {
	alloc := m.start(t, job{name: "exec", image: probeImage, command: "sleep", args: []string{"infinity"}, slices: 1})
	must.Eq(t, "3", m.run(t, "nomad alloc exec -i=false -t=false -task t %s sh -c 'exit 3' || echo $?", alloc.ID))
	pid := m.pid(t, alloc.ID)
	m.run(t, "nomad alloc exec -i=false -t=false -task t %s gpu-probe fill >/dev/null 2>&1 &", alloc.ID)
	m.fills(t, pid, gib)
	m.mustHoldExactly(t, pid, gib)
	must.Eq(t, "2", m.run(t, "wc --lines <%s/cgroup.procs", m.cgroup(t, pid)))
}

// checkStats has Nomad's statistics of a busy task.
func checkStats(t *testing.T, m *machine) {
	alloc := m.start(t, fill("stats", 1))
	m.says(t, alloc.ID, "computing")
	address := "/v1/client/allocation/" + alloc.ID + "/stats"
	m.until(t, `nomad operator api %s | grep --quiet '"TotalTicks":[1-9]'`, address)
	var stats api.AllocResourceUsage
	must.NoError(t, json.Unmarshal([]byte(m.run(t, "nomad operator api %s", address)), &stats))
	must.Positive(t, stats.ResourceUsage.MemoryStats.RSS)
	must.Positive(t, stats.ResourceUsage.MemoryStats.Usage)
	must.SliceLen(t, 1, stats.ResourceUsage.DeviceStats)
}

// checkCgroupns has a task that sees the host's cgroups, where the operator allows it.
func checkCgroupns(t *testing.T, m *machine) {
	j := job{name: "cgroupns", image: probeImage, command: "sleep", args: []string{"infinity"}, slices: 1, config: `cgroupns = "host"`}
	alloc := m.start(t, j)
	must.Eq(t, "0::/nomad.slice/share.slice/"+alloc.ID+".t.scope", m.alloc(t, alloc.ID, "cat /proc/self/cgroup"))
}

// checkScript has Nomad run a script in the task when a template changes, which is how script checks run as well.
func checkScript(t *testing.T, m *machine) {
	m.run(t, "nomad var put -force nomad/jobs/script value=before")
	j := job{name: "script", image: probeImage, command: "sleep", args: []string{"infinity"}, slices: 1, task: `
template {
  data        = "{{ with nomadVar \"nomad/jobs/script\" }}{{ .value }}{{ end }}"
  destination = "local/value"
  change_mode = "script"
  change_script {
    command = "/bin/sh"
    args    = ["-c", "cat /local/value /proc/self/cgroup >/local/seen"]
  }
}`}
	alloc := m.start(t, j)
	m.run(t, "nomad var put -force nomad/jobs/script value=after")
	m.until(t, "grep --quiet --no-messages 'after0::/$' /opt/nomad/alloc/%s/t/local/seen", alloc.ID)
}
