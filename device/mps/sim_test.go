package mps

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

// simulated is a Manager with the simulated daemon, and programs that compute through that.
type simulated struct {
	*Manager
	node *simtest.Node
	gpus *nvml.Library
}

func newSimulated(t *testing.T) *simulated {
	t.Helper()
	return newSimulatedOf(t, "h200x2.conf")
}

func newSimulatedOf(t *testing.T, topology string) *simulated {
	t.Helper()
	needs.Root(t, "to start an MPS control daemon")
	node := simtest.New(t, topology)
	// Programs run as other users, too.
	must.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(node.DriverRoot)), 0o755))
	gpus := nvml.New(node.DriverRoot)
	_, err := gpus.Read(t.Context())
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, gpus.Close(context.Background())) })
	return &simulated{Manager: newManager(t, Options{DriverRoot: node.DriverRoot, GPUs: gpus}), node: node, gpus: gpus}
}

// program is one that computes.
type program struct {
	cmd    *exec.Cmd
	output string
}

// start starts a program in the directories that a container would have of a daemon; without a daemon where there is no uuid.
func (s *simulated) start(t *testing.T, uuid, what string, user uint32, env ...string) *program {
	t.Helper()
	return s.startIn(t, uuid, s.dirs(uuid).client(), what, user, env...)
}

// startIn is start with one of the directories for containers.
func (s *simulated) startIn(t *testing.T, uuid, pipes, what string, user uint32, env ...string) *program {
	t.Helper()
	probe, err := filepath.Abs("../../build/e2e/gpu-probe")
	must.NoError(t, err)
	must.FileExists(t, probe, must.Sprint("make test-setup builds it"))
	library, err := driverroot.FindLibrary(s.node.DriverRoot, driverroot.CUDALibrary)
	must.NoError(t, err)
	script := `exec "$@"`
	if uuid != "" {
		d := s.dirs(uuid)
		script = `mount --bind ` + d.shm() + ` /dev/shm && mount --bind -o ro ` + pipes + ` /tmp/mps && mount -o remount,bind,ro /tmp/mps && exec "$@"`
		must.NoError(t, os.MkdirAll("/tmp/mps", 0o755))
		env = append(env, "CUDA_MPS_PIPE_DIRECTORY=/tmp/mps")
	}
	id := []string{"setpriv", "--reuid", strconv.Itoa(int(user)), "--clear-groups"}
	file, err := os.CreateTemp(t.TempDir(), "output")
	must.NoError(t, err)
	defer file.Close()
	cmd := exec.Command("unshare", slices.Concat([]string{"--mount", "sh", "-c", script, "sh"}, id, []string{probe, what})...)
	cmd.Env = append(os.Environ(), append(env, "LD_LIBRARY_PATH="+filepath.Dir(library))...)
	cmd.Stdout, cmd.Stderr = file, file
	must.NoError(t, cmd.Start())
	p := &program{cmd: cmd, output: file.Name()}
	t.Cleanup(p.end)
	return p
}

func (p *program) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *program) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.output)
	must.NoError(t, err)
	return string(text)
}

// says waits for what a program says.
func (p *program) says(t *testing.T, text string) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return strings.Contains(p.said(t), text) }),
		wait.Timeout(patience), wait.Gap(10*time.Millisecond)), must.Func(func() string { return "it said: " + p.said(t)[:min(400, len(p.said(t)))] }))
}

// bytes is what the simulator's record says that a process has of its GPUs.
func (s *simulated) bytes(t *testing.T, pid int) uint64 {
	t.Helper()
	var record struct {
		Processes []struct {
			PID  int `json:"pid"`
			GPUs []struct {
				Bytes uint64 `json:"bytes"`
			} `json:"gpus"`
		} `json:"processes"`
	}
	must.NoError(t, json.Unmarshal(s.node.Run(t, "record", "--json"), &record))
	sum := uint64(0)
	for _, process := range record.Processes {
		for _, gpu := range process.GPUs {
			if process.PID == pid {
				sum += gpu.Bytes
			}
		}
	}
	return sum
}

// idle waits until the daemon has noticed that its clients are gone.
func idle(t *testing.T, m *Manager, uuid string) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		clients, err := m.Clients(t.Context(), uuid)
		return err == nil && len(clients) == 0
	}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
}

func TestSimulated(t *testing.T) {
	s := newSimulated(t)
	for _, uuid := range []string{simtest.H200UUID0, simtest.H200UUID1} {
		must.NoError(t, s.Ensure(t.Context(), uuid))
		must.Eq(t, Status{Running: true}, s.Status(uuid))
		must.Eq(t, nvml.ComputeExclusiveProcess, modeOf(t, s.gpus, uuid))
		must.True(t, locked(t, s.dirs(uuid)))
	}
	entries, err := os.ReadDir(s.dirs(simtest.H200UUID1).client())
	must.NoError(t, err)
	must.Len(t, 3, entries)

	// Programs of two users at once, each with its own limit, on the second GPU only.
	const limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0="
	first := s.start(t, simtest.H200UUID1, "fill", 0, limit+"2048M")
	second := s.start(t, simtest.H200UUID1, "fill", 1000, limit+"1024M")
	for program, most := range map[*program]uint64{first: 2048 << 20, second: 1024 << 20} {
		program.says(t, `"computing"`)
		must.StrContains(t, program.said(t), `"gpus":1`)
		held := s.bytes(t, program.cmd.Process.Pid)
		must.LessEq(t, most, held)
		must.Greater(t, most*9/10, held, must.Sprint("it got less than its limit"))
	}
	must.Eq(t, 0, s.node.UsedBytes(t, simtest.H200UUID0), must.Sprint("that GPU has no server"))
	clients, err := s.Clients(t.Context(), simtest.H200UUID1)
	must.NoError(t, err)
	slices.Sort(clients)
	want := []int{first.cmd.Process.Pid, second.cmd.Process.Pid}
	slices.Sort(want)
	must.Eq(t, want, clients)
	must.ErrorContains(t, s.Release(t.Context(), simtest.H200UUID1), "has clients")

	// Nobody gets past the daemon.
	s.start(t, "", "fill", 0, "CUDA_VISIBLE_DEVICES="+simtest.H200UUID1).says(t, `"name":"CUDA_ERROR_DEVICE_UNAVAILABLE"`)

	must.NoError(t, s.Release(t.Context(), simtest.H200UUID0))
	must.Eq(t, nvml.ComputeDefault, modeOf(t, s.gpus, simtest.H200UUID0))
	s.start(t, "", "fill", 0, "CUDA_VISIBLE_DEVICES="+simtest.H200UUID0).says(t, `"computing"`)
	first.end()
	second.end()
	idle(t, s.Manager, simtest.H200UUID1)
	must.NoError(t, s.Release(t.Context(), simtest.H200UUID1))
	must.Eq(t, nvml.ComputeDefault, modeOf(t, s.gpus, simtest.H200UUID1))
}

// The server's death is its clients' error; the daemon has another for the next. The daemon's own is seen to by the Manager.
func TestSimulated_killed(t *testing.T) {
	s := newSimulated(t)
	const uuid = simtest.H200UUID0
	must.NoError(t, s.Ensure(t.Context(), uuid))
	daemon := pidOf(t, s.Manager, uuid)

	first := s.start(t, uuid, "fill", 0)
	first.says(t, `"computing"`)
	server := number(t, tell(t, s.Manager, uuid, "get_server_list"))
	must.NoError(t, unix.Kill(server, unix.SIGKILL))
	first.says(t, `"event":"error"`)
	first.end() // it holds its memory until then
	second := s.start(t, uuid, "fill", 0)
	second.says(t, `"computing"`)
	must.Eq(t, daemon, pidOf(t, s.Manager, uuid))
	must.True(t, s.Status(uuid).Running)

	must.NoError(t, unix.Kill(daemon, unix.SIGKILL))
	until(t, s.Manager, uuid, func(s Status) bool { return !s.Running })
	until(t, s.Manager, uuid, func(s Status) bool { return s.Running })
	must.NotEq(t, daemon, pidOf(t, s.Manager, uuid))
	second.says(t, `"event":"error"`)
	second.end()
	third := s.start(t, uuid, "fill", 0)
	third.says(t, `"computing"`)
	third.end()
	idle(t, s.Manager, uuid)
	must.NoError(t, s.Release(t.Context(), uuid))
	must.Eq(t, 0, s.node.UsedBytes(t, uuid))
}

// A program computes on while the plugin is exchanged.
func TestSimulated_adopts(t *testing.T) {
	s := newSimulated(t)
	const uuid = simtest.H200UUID0
	must.NoError(t, s.Ensure(t.Context(), uuid))
	daemon := pidOf(t, s.Manager, uuid)
	client := s.start(t, uuid, "fill", 0)
	client.says(t, `"computing"`)
	s.Close()

	next := newManager(t, s.options)
	must.NoError(t, next.Ensure(t.Context(), uuid))
	must.Eq(t, daemon, pidOf(t, next, uuid))
	clients, err := next.Clients(t.Context(), uuid)
	must.NoError(t, err)
	must.Eq(t, []int{client.cmd.Process.Pid}, clients)
	must.NoError(t, client.cmd.Process.Signal(syscall.SIGTERM))
	must.NoError(t, client.cmd.Wait())
	must.StrContains(t, client.said(t), `"stopped"`)
	idle(t, next, uuid)
	must.NoError(t, next.Release(t.Context(), uuid))
}

// The server has the GPU before any client comes: a program that knows nothing of MPS gets no part of it. When it is killed,
// the next one takes its place.
func TestSimulated_serves(t *testing.T) {
	s := newSimulated(t)
	const uuid = simtest.H200UUID0
	must.NoError(t, s.Ensure(t.Context(), uuid))
	for range 2 {
		must.NoError(t, s.Serve(t.Context(), uuid))
		server := number(t, tell(t, s.Manager, uuid, "get_server_list"))
		must.NoError(t, s.Serve(t.Context(), uuid))
		must.Eq(t, server, number(t, tell(t, s.Manager, uuid, "get_server_list")))
		s.start(t, "", "fill", 0, "CUDA_VISIBLE_DEVICES="+uuid).says(t, `"name":"CUDA_ERROR_DEVICE_UNAVAILABLE"`)
		client := s.start(t, uuid, "fill", 1000)
		client.says(t, `"computing"`)
		must.NoError(t, unix.Kill(server, unix.SIGKILL))
		client.says(t, `"event":"error"`)
		client.end()
		must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return tell(t, s.Manager, uuid, "get_server_list") == "" }),
			wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
	}
	must.Eq(t, 0, s.node.UsedBytes(t, uuid))

	// Somebody who was quicker keeps it.
	quicker := s.start(t, "", "fill", 0, "CUDA_VISIBLE_DEVICES="+uuid)
	quicker.says(t, `"computing"`)
	s.timing.serve = 100 * time.Millisecond
	err := s.Serve(t.Context(), uuid)
	var failed *ServerError
	must.True(t, errors.As(err, &failed), must.Sprint(err))
	must.ErrorContains(t, err, "see "+s.dirs(uuid).log())
	quicker.end()
	s.timing.serve = patience
	must.NoError(t, s.Serve(t.Context(), uuid))
}

// A daemon that takes the place of the one that was told to start a server is told so, too.
func TestSimulated_servesAfterARestart(t *testing.T) {
	s := newSimulated(t)
	const uuid = simtest.H200UUID0
	must.NoError(t, s.Ensure(t.Context(), uuid))
	quicker := s.start(t, "", "fill", 0, "CUDA_VISIBLE_DEVICES="+uuid)
	quicker.says(t, `"computing"`)
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), uuid) }()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		log, _ := os.ReadFile(filepath.Join(s.dirs(uuid).log(), "control.log"))
		return strings.Contains(string(log), "Starting new server")
	}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
	daemon := pidOf(t, s.Manager, uuid)
	must.NoError(t, unix.Kill(daemon, unix.SIGKILL))
	until(t, s.Manager, uuid, func(s Status) bool { return !s.Running })
	quicker.end()
	must.NoError(t, <-served)
}

// What cleans up /run removes the sockets of a daemon that lives. It is replaced at once, with its server, so that clients
// get in again.
func TestSimulated_pipeRemoved(t *testing.T) {
	for name, remove := range map[string]func(d dirs) []string{
		"the sockets": func(d dirs) []string { return []string{d.pipe() + "/control", d.pipe() + "/control_privileged"} },
		"the pipe":    func(d dirs) []string { return []string{d.pipe()} },
		"all":         func(d dirs) []string { return []string{d.client(), d.log(), d.identity(), d.computeMode(), d.pipe()} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSimulated(t)
			const uuid = simtest.H200UUID0
			must.NoError(t, s.Ensure(t.Context(), uuid))
			must.NoError(t, s.Serve(t.Context(), uuid))
			daemon, server := pidOf(t, s.Manager, uuid), number(t, tell(t, s.Manager, uuid, "get_server_list"))
			for _, path := range remove(s.dirs(uuid)) {
				must.NoError(t, os.RemoveAll(path))
			}
			until(t, s.Manager, uuid, func(s Status) bool { return !s.Running })
			until(t, s.Manager, uuid, func(s Status) bool { return s.Running })
			must.NoError(t, s.Ensure(t.Context(), uuid))
			must.NoError(t, s.Serve(t.Context(), uuid))
			mustHaveEnded(t, daemon)
			mustHaveEnded(t, server)
			client := s.start(t, uuid, "fill", 0)
			client.says(t, `"computing"`)
			client.end()
			idle(t, s.Manager, uuid)
			must.NoError(t, s.Release(t.Context(), uuid))
			must.Eq(t, nvml.ComputeDefault, modeOf(t, s.gpus, uuid))
			must.Eq(t, 0, s.node.UsedBytes(t, uuid))
		})
	}
}
