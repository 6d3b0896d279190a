//go:build e2e

package vm_test

import (
	"testing"

	"github.com/shoenig/test/must"
)

// tasks are a task of Nomad and a container of each engine, all at their limits, through what happens to the node.
type tasks struct {
	m     *machine
	alloc string
}

func startTasks(t *testing.T, m *machine) *tasks {
	t.Helper()
	podman.fill(t, m, "stays", "--restart always")
	m.run(t, "sync") // Podman does not: a power cut would leave a container that does not start
	docker.fill(t, m, "stays", "--restart always")
	alloc := m.start(t, fill("stays", 2))
	m.says(t, alloc.ID, "computing")
	return &tasks{m, alloc.ID}
}

// pids are the first processes of all containers, and mustHold checks that these are at their limits.
func (s *tasks) pids(t *testing.T) [3]string {
	t.Helper()
	return [3]string{s.m.pid(t, s.alloc), docker.pid(t, s.m, "stays"), podman.pid(t, s.m, "stays")}
}

func (s *tasks) mustHold(t *testing.T) {
	t.Helper()
	for i, pid := range s.pids(t) {
		s.m.mustHoldExactly(t, pid, []uint64{2 * gib, gib, gib}[i])
	}
}

// checkReload has systemd apply all its settings again, those of devices included. NVIDIA's nodes have no links in /dev/char.
func checkReload(t *testing.T, m *machine) {
	m.run(t, "rm --force $(find -L /dev/char -samefile /dev/nvidia0)")
	s := startTasks(t, m)
	before := s.pids(t)
	for _, verb := range []string{"daemon-reload", "daemon-reexec", "daemon-reload"} {
		m.run(t, "systemctl %s", verb)
	}
	const look = "exec 3</dev/nvidia0 && gpu-probe look"
	must.StrContains(t, m.alloc(t, s.alloc, look), `"gpus":1`)
	must.StrContains(t, m.run(t, "docker exec stays sh -c '%s'", look), `"gpus":1`)
	must.StrContains(t, m.run(t, "podman exec stays sh -c '%s'", look), `"gpus":1`)
	must.Eq(t, before, s.pids(t))
	s.mustHold(t)
}

// checkRestarts restarts each service under running tasks. Docker ends its containers, and starts them again.
func checkRestarts(t *testing.T, m *machine) {
	s := startTasks(t, m)
	for _, service := range []string{"containerd", "nomad", "tranche-governor", "tranche-agent", "docker"} {
		before := s.pids(t)
		m.run(t, "systemctl restart %s", service)
		must.NoError(t, m.ready(deadline(t)))
		if service == "docker" {
			m.until(t, "docker inspect --format '{{.State.Running}}' stays | grep --quiet true")
			m.fills(t, docker.pid(t, m, "stays"), gib)
		} else {
			must.Eq(t, before, s.pids(t), must.Sprint(service))
		}
		s.mustHold(t)
		t.Run("then a new task", func(t *testing.T) { checkLimit(t, m) })
	}
	must.Eq(t, "", m.run(t, "systemctl --failed --quiet --no-legend"))
}

// checkGovernor has systemd's governor take over from the device plugin's, which runs while none of systemd does.
func checkGovernor(t *testing.T, m *machine) {
	small, large := m.load(t, "small", 42), m.load(t, "large", 98)
	const kept = "[ \"$(readlink /proc/$(cat /run/tranche/governor/lock)/fd/2)\" = /run/tranche/governor/log ]"
	m.run(t, "systemctl stop tranche-governor")
	m.until(t, "%s", kept)
	m.comesTo(t, 30, small, large)
	m.run(t, "systemctl start tranche-governor")
	m.run(t, "! %s", kept)
	m.comesTo(t, 30, small, large)
}

// checkBoots cuts the power and shuts down in order. Everything that ran runs again, at its limit.
func checkBoots(t *testing.T, m *machine) {
	s := startTasks(t, m)
	m.run(t, "systemctl --quiet enable podman-restart")
	boots := map[string]func() error{
		"power cut": func() error { m.CutPower(); return m.Boot(deadline(t)) },
		"reboot":    func() error { return m.Machine.Reboot(deadline(t)) },
	}
	for _, what := range []string{"power cut", "reboot"} {
		timed(t, what, boots[what])
		must.NoError(t, m.ready(deadline(t)))
		m.until(t, "ctr --namespace nomad task ls | grep --quiet RUNNING")
		for _, e := range []engine{docker, podman} {
			m.until(t, "%s inspect --format '{{.State.Running}}' stays | grep --quiet true", e.command)
		}
		for i, pid := range s.pids(t) {
			m.fills(t, pid, []uint64{2 * gib, gib, gib}[i])
		}
		s.mustHold(t)
		m.run(t, "tranche doctor")
	}
}

// checkUpgrade installs another version and the same again under running tasks.
func checkUpgrade(t *testing.T, m *machine) {
	s := startTasks(t, m)
	before := s.pids(t)
	m.run(t, "apt-get install --quiet=2 --allow-downgrades /media/older.deb 2>&1")
	m.run(t, "apt-get install --quiet=2 /media/tranche.deb 2>&1")
	must.Eq(t, before, s.pids(t))
	s.mustHold(t)
	must.Eq(t, "active\nactive", m.run(t, "systemctl is-active tranche-governor tranche-agent"))
	checkLimit(t, m)
}

// checkPurge is refused under a running task, and leaves nothing behind without one. It is the last: Tranche is gone then.
func checkPurge(t *testing.T, m *machine) {
	t.Run("refused", func(t *testing.T) {
		m.run(t, "rm /etc/nomad.d/plugins.hcl") // the operator's, without which the agent would not start
		m.start(t, fill("purge", 1))
		must.StrContains(t, m.run(t, "apt-get purge --quiet=2 tranche 2>&1 || :"), "runs with claim")
	})
	for _, gpu := range parse(t, m.run(t, record)).GPUs {
		must.Zero(t, gpu.UsedBytes)
	}
	m.run(t, "apt-get purge --quiet=2 tranche 2>&1")
	must.Eq(t, "", m.run(t, "find /etc /usr /run /opt/nomad/plugins -name '*tranche*'"))
	must.Eq(t, "", m.run(t, "grep /run/tranche /proc/mounts || :"))
}
