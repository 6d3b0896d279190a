//go:build e2e

package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/e2e/images"
	"github.com/tranche-gpu/tranche/e2e/node"
	"github.com/tranche-gpu/tranche/e2e/vm"
)

const (
	gib        = 1 << 30
	probeImage = "tranche.local/gpu-probe:test"
	loadImage  = "tranche.local/load:test"
)

// machine is a virtual machine that is a node with Nomad, container engines, simulated GPUs and Tranche.
type machine struct {
	*vm.Machine
	// Node has the methods for jobs, by the API of the machine's Nomad.
	*node.Node
}

// newMachine boots a new machine and sets it up as a node. If the test fails, it shows what the machine said.
func newMachine(t *testing.T, s system, enforcement string) *machine {
	t.Helper()
	dir := filepath.Join(build, "vm/run")
	must.NoError(t, os.RemoveAll(dir))
	media := filepath.Join(dir, "media")
	makeMedia(t, media, enforcement)
	root := filepath.Join(build, "vm", s.name)
	timed(t, "root file system", func() error { return command(repository("e2e/vm/root.sh"), root, s.release, s.kernel) })
	machineOnly, err := vm.New(deadline(t), dir, root, media)
	must.NoError(t, err)
	client, err := api.NewClient(&api.Config{Address: "http://" + machineOnly.Address})
	must.NoError(t, err)
	m := &machine{machineOnly, &node.Node{Config: node.Config{Dir: "vm"}, Agent: &node.Agent{API: client}}}
	t.Cleanup(func() {
		if t.Failed() {
			m.explain(t)
		}
		m.CutPower()
		if !t.Failed() {
			must.NoError(t, os.RemoveAll(dir))
		}
	})
	timed(t, "boot", func() error { return m.Boot(deadline(t)) })
	timed(t, "setup", func() error { _, err := m.Shell(deadline(t), "sh /media/setup.sh 2>&1"); return err })
	timed(t, "ready", func() error { return m.ready(deadline(t)) })
	return m
}

// timed runs a step and logs how long it took.
func timed(t *testing.T, what string, step func() error) {
	t.Helper()
	began := time.Now()
	must.NoError(t, step(), must.Sprint(what))
	t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
}

// topologies are the simulated GPUs for each enforcement: with a driver that has no limits, and with one that has.
var topologies = map[string]string{"library": "h200x2.conf", "driver": "h200x2-r615.conf"}

// makeMedia lays out what the machine installs from: e2e/vm/media, packages, Nomad, the simulator and images.
func makeMedia(t *testing.T, dir, enforcement string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "images"), 0o755))
	for _, file := range [][2]string{
		{repository("e2e/vm/media"), ""},
		{filepath.Join(build, "sim/bin"), "sim/bin"},
		{filepath.Join(build, "sim/lib"), "sim/lib"},
		{repository("e2e/simgpu/topologies/" + topologies[enforcement]), "sim/h200x2.conf"},
		{mustGlob(t, filepath.Join(build, "package/dist/tranche_*_amd64.deb")), "tranche.deb"},
	} {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file[1])), 0o755))
		must.NoError(t, command("cp", "-r", "--no-target-directory", file[0], filepath.Join(dir, file[1])))
	}
	must.NoError(t, command(repository("e2e/vm/older.sh"), filepath.Join(dir, "tranche.deb"), filepath.Join(dir, "older.deb")))
	must.NoError(t, command("strip", "-o", filepath.Join(dir, "nomad"), filepath.Join(build, "tools/nomad")))
	for ref, program := range map[string]string{probeImage: "gpu-probe", loadImage: "load"} {
		image, err := images.Program(filepath.Join(build, "e2e", program))
		must.NoError(t, err)
		must.NoError(t, images.SaveDockerArchive(image, ref, filepath.Join(dir, "images", program+".tar")))
	}
	must.NoError(t, os.WriteFile(filepath.Join(dir, "root/etc/nomad.d/plugins.hcl"), []byte(plugins(enforcement)), 0o644))
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// plugins is the configuration of Nomad's plugins.
func plugins(enforcement string) string {
	device := ""
	if enforcement != "library" {
		device = fmt.Sprintf("enforcement = %q", enforcement)
	}
	return fmt.Sprintf(`plugin "nomad-device-tranche" {
  config {
    mode    = "slice"
    compute = "shares"
    %s
  }
}

plugin "nomad-driver-tranche" {
  config {
    allow_host_namespaces = ["cgroup"]
  }
}
`, device)
}

// explain logs the machine's console and the journal of the services.
func (m *machine) explain(t *testing.T) {
	t.Helper()
	t.Logf("the end of the console:\n%s", m.Console())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	journal, err := m.Shell(ctx, `systemctl --no-pager --failed; journalctl --no-pager --boot --lines=150 \
		--unit=nomad --unit=containerd --unit=docker --unit='tranche-*' --unit=simgpu --unit=podman-restart | grep -v 'level=info'`)
	t.Logf("the journal of the services (%v):\n%s", err, journal)
}

// ready waits until Nomad answers and the node has its driver and devices.
func (m *machine) ready(ctx context.Context) error {
	for {
		err := m.WaitReady(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond) // nothing tells when an address begins to answer
	}
}

// job is a job of one task.
type job struct {
	name, image, command string
	args                 []string
	// slices is how many of GPU 0 the task reserves.
	slices int
	// task, config and resources are further lines of these blocks.
	task, config, resources string
	batch                   bool
}

func (j job) hcl() string {
	kind, device := "service", ""
	if j.batch {
		kind = "batch"
	}
	if j.slices > 0 {
		device = fmt.Sprintf(`device "nvidia/slice" {
          count = %d
          constraint {
            attribute = "${device.attr.index}"
            value     = "0"
          }
        }`, j.slices)
	}
	args, _ := json.Marshal(j.args)
	return fmt.Sprintf(`job %q {
  type = %q
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" {
      driver = "containerd"
      %s
      config {
        image   = %q
        command = %q
        args    = %s
        %s
      }
      resources {
        cpu = 400
        %s
        %s
      }
    }
  }
}
`, j.name, kind, j.task, j.image, j.command, args, j.config, j.resources, device)
}

// start runs a job and returns its allocation once it runs.
func (m *machine) start(t *testing.T, j job) *api.AllocationListStub {
	t.Helper()
	return m.submit(t, j, "running")
}

// submit runs a job and returns its allocation once it has a status. The job is stopped after the test.
func (m *machine) submit(t *testing.T, j job, status string) *api.AllocationListStub {
	t.Helper()
	parsed, err := m.ParseJob(j.hcl())
	must.NoError(t, err, must.Sprint(j.hcl()))
	t.Cleanup(func() { must.NoError(t, m.StopJob(deadline(t), j.name)) })
	_, err = m.Run(deadline(t), parsed)
	must.NoError(t, err)
	alloc, err := m.WaitStatus(deadline(t), j.name, status)
	must.NoError(t, err)
	return alloc
}

// says waits until the task has written a line with the text.
func (m *machine) says(t *testing.T, allocID, text string) {
	t.Helper()
	m.until(t, "grep --quiet --no-messages '%s' /opt/nomad/alloc/%s/alloc/logs/t.stdout.*", text, allocID)
}

// run runs a shell script in the machine and returns its output without the space around it.
func (m *machine) run(t *testing.T, format string, args ...any) string {
	t.Helper()
	out, err := m.Shell(deadline(t), fmt.Sprintf(format, args...))
	must.NoError(t, err)
	return strings.TrimSpace(out)
}

// until repeats a shell script in the machine until it succeeds.
func (m *machine) until(t *testing.T, format string, args ...any) {
	t.Helper()
	for ctx := deadline(t); ; time.Sleep(200 * time.Millisecond) {
		_, err := m.Shell(ctx, fmt.Sprintf(format, args...))
		if err == nil {
			return
		}
		must.NoError(t, ctx.Err(), must.Sprint(err))
	}
}

// pid is the first process of an allocation's container.
func (m *machine) pid(t *testing.T, allocID string) string {
	t.Helper()
	return m.run(t, "ctr --namespace nomad task ls | awk '/^%s/ {print $2}'", allocID)
}

// held is what the container of a first process holds and has used of its GPU, by the simulator's record.
func (m *machine) held(t *testing.T, pid string) node.RecordGroup {
	t.Helper()
	key, text, _ := strings.Cut(m.run(t, `echo pidns:$(stat -L --format %%i /proc/%[1]s/ns/pid):$(sed 's/.*) //' /proc/%[1]s/stat | cut -d ' ' -f 20)
		%[2]s`, pid, record), "\n")
	for _, g := range parse(t, text).Groups {
		if g.Group == key {
			return g
		}
	}
	return node.RecordGroup{}
}

// record is the command for the simulator's record.
const record = "SIMGPU_STATE=/run/simgpu/state SIMGPU_TOPOLOGY=/run/simgpu/topology /opt/sim/bin/simgpu record --json"

func parse(t *testing.T, text string) *node.Record {
	t.Helper()
	r := &node.Record{}
	must.NoError(t, json.Unmarshal([]byte(text), r))
	return r
}

// mustHoldExactly checks that a container holds its limit and never held more.
func (m *machine) mustHoldExactly(t *testing.T, pid string, limit uint64) {
	t.Helper()
	g := m.held(t, pid)
	must.Eq(t, limit, g.Bytes)
	must.Eq(t, limit, g.PeakBytes)
}

// fills waits until a container holds so much.
func (m *machine) fills(t *testing.T, pid string, bytes uint64) {
	t.Helper()
	for ctx := deadline(t); m.held(t, pid).Bytes < bytes; {
		must.NoError(t, ctx.Err())
	}
}
