package mps

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/device/nvml"
	"github.com/tranche-gpu/tranche/device/nvml/nvmltest"
	"github.com/tranche-gpu/tranche/internal/needs"
)

const patience = time.Minute

var gpu0, gpu1 = nvmltest.H200(0).UUID, nvmltest.H200(1).UUID

// newManager is a Manager whose daemons go with the test.
func newManager(t *testing.T, options Options) *Manager {
	t.Helper()
	needs.Root(t, "to start an MPS control daemon")
	if options.RunDir == "" {
		options.RunDir = shortDir(t)
	}
	if options.GPUs == nil {
		options.GPUs = nvmltest.New(nvmltest.H200(0), nvmltest.H200(1))
	}
	m := New(options)
	m.timing.firstPause = 10 * time.Millisecond
	t.Cleanup(func() { clear(t, m) })
	return m
}

// shortDir is a directory in which a socket may have a name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// clear removes all that a Manager has.
func clear(t *testing.T, m *Manager) {
	m.Close()
	left, err := m.Left()
	must.NoError(t, err)
	for _, uuid := range left {
		if err := m.Stop(context.Background(), uuid); err != nil {
			t.Error(err)
		}
		must.NoError(t, m.dirs(uuid).remove())
	}
}

// until waits for a status.
func until(t *testing.T, m *Manager, uuid string, is func(Status) bool) Status {
	t.Helper()
	end := time.After(patience)
	for {
		if now := m.Status(uuid); is(now) {
			return now
		}
		select {
		case <-m.Changed():
		case <-end:
			t.Fatalf("the daemon is %+v", m.Status(uuid))
		}
	}
}

func modeOf(t *testing.T, gpus GPUs, uuid string) nvml.ComputeMode {
	t.Helper()
	health, err := gpus.Health(t.Context(), uuid)
	must.NoError(t, err)
	return *health.ComputeMode
}

func TestEnsure(t *testing.T) {
	gpus := nvmltest.New(nvmltest.H200(0), nvmltest.H200(1))
	root := fakeRoot(t, fakeManners{})
	t.Setenv("LD_PRELOAD", "")
	t.Setenv("NOMAD_TOKEN", "a secret")
	m := newManager(t, Options{DriverRoot: root, GPUs: gpus})
	must.False(t, m.Owns(gpu0))
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	must.Eq(t, Status{Running: true}, m.Status(gpu0))
	must.Eq(t, nvml.ComputeExclusiveProcess, modeOf(t, gpus, gpu0))
	must.Eq(t, nvml.ComputeDefault, modeOf(t, gpus, gpu1))
	must.True(t, m.Owns(gpu0))

	d, pid := m.dirs(gpu0), pidOf(t, m, gpu0)
	must.True(t, locked(t, d))
	session, err := unix.Getsid(pid)
	must.NoError(t, err)
	must.Eq(t, pid, session, must.Sprint("a signal to the plugin's session would reach the daemon"))
	var seen, shared unix.Stat_t
	must.NoError(t, unix.Stat(filepath.Join("/proc", strconv.Itoa(pid), "root/dev/shm"), &seen))
	must.NoError(t, unix.Stat(d.shm(), &shared))
	must.Eq(t, shared.Dev, seen.Dev, must.Sprint("the daemon has another /dev/shm than its clients"))
	must.Eq(t, uint32(unix.S_ISVTX|0o777), shared.Mode&0o7777)
	var host unix.Stat_t
	must.NoError(t, unix.Stat("/dev/shm", &host))
	must.NotEq(t, host.Dev, seen.Dev)

	printed, err := os.ReadFile(d.output())
	must.NoError(t, err)
	must.StrContains(t, string(printed), "args [-f -multiuser-server]")
	environ, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	must.NoError(t, err)
	must.Eq(t, []string{
		"PATH=" + root + "/usr/bin:/usr/bin:/bin", "LD_LIBRARY_PATH=" + d.library() + ":" + root + "/usr/lib64",
		"CUDA_MPS_PIPE_DIRECTORY=" + d.pipe(), "CUDA_MPS_LOG_DIRECTORY=" + d.log(), "CUDA_VISIBLE_DEVICES=" + gpu0,
	}, strings.Split(strings.TrimRight(string(environ), "\x00"), "\x00"))

	// Asked again, it is the same; a compute mode that somebody changed is set again.
	must.NoError(t, gpus.SetComputeMode(t.Context(), gpu0, nvml.ComputeDefault))
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	must.Eq(t, pid, pidOf(t, m, gpu0))
	must.Eq(t, nvml.ComputeExclusiveProcess, modeOf(t, gpus, gpu0))

	must.NoError(t, m.Release(t.Context(), gpu0))
	must.Eq(t, nvml.ComputeDefault, modeOf(t, gpus, gpu0))
	must.DirNotExists(t, d.root)
	mustHaveEnded(t, pid)
	must.False(t, m.Owns(gpu0))
	left, err := m.Left()
	must.NoError(t, err)
	must.SliceEmpty(t, left)
}

// Clients see the socket, the lock and the log's pipe, as they are after a restart, too; nothing by which they could take the
// daemon's place or give it orders.
func TestEnsure_clients(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{})})
	d := m.dirs(gpu0)
	must.NoError(t, os.MkdirAll(d.pipe(), 0o755))
	must.NoError(t, unix.Mkfifo(filepath.Join(d.pipe(), "log"), 0o666))
	must.NoError(t, os.WriteFile(filepath.Join(d.pipe(), "control_lock"), nil, 0o666))
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	for _, name := range []string{"control", "control_lock", "log"} {
		must.True(t, sameFile(t, filepath.Join(d.pipe(), name), filepath.Join(d.client(), name)), must.Sprint(name))
	}
	entries, err := os.ReadDir(d.client())
	must.NoError(t, err)
	must.Len(t, 3, entries)

	pid := pidOf(t, m, gpu0)
	must.NoError(t, unix.Kill(pid, unix.SIGKILL))
	until(t, m, gpu0, func(s Status) bool { return !s.Running })
	until(t, m, gpu0, func(s Status) bool { return s.Running })
	must.NotEq(t, pid, pidOf(t, m, gpu0))
	must.True(t, sameFile(t, d.control(), filepath.Join(d.client(), "control")))

	must.NoError(t, m.Stop(t.Context(), gpu0))
	must.FileNotExists(t, filepath.Join(d.client(), "control"))
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	first, err := os.Stat(a)
	must.NoError(t, err)
	second, err := os.Stat(b)
	must.NoError(t, err)
	return os.SameFile(first, second)
}

// A daemon outlives the plugin, and the next one watches it as its own.
func TestEnsure_adopts(t *testing.T) {
	gpus := nvmltest.New(nvmltest.H200(0))
	must.NoError(t, gpus.SetComputeMode(t.Context(), gpu0, nvml.ComputeProhibited))
	options := Options{DriverRoot: fakeRoot(t, fakeManners{OneUser: true}), RunDir: shortDir(t), GPUs: gpus}
	first := newManager(t, options)
	must.NoError(t, first.Ensure(t.Context(), gpu0))
	pid := pidOf(t, first, gpu0)
	first.Close()
	must.NoError(t, unix.Kill(pid, 0))

	second := newManager(t, options)
	left, err := second.Left()
	must.NoError(t, err)
	must.Eq(t, []string{gpu0}, left)
	must.NoError(t, second.Ensure(t.Context(), gpu0))
	must.Eq(t, pid, pidOf(t, second, gpu0))
	must.True(t, second.Status(gpu0).OneUser)
	must.NoError(t, unix.Kill(pid, unix.SIGKILL))
	until(t, second, gpu0, func(s Status) bool { return !s.Running })
	until(t, second, gpu0, func(s Status) bool { return s.Running })
	must.NotEq(t, pid, pidOf(t, second, gpu0))

	must.NoError(t, second.Release(t.Context(), gpu0))
	must.Eq(t, nvml.ComputeProhibited, modeOf(t, gpus, gpu0), must.Sprint("the mode from before the first plugin process is restored"))
}

// A daemon that ended while nobody watched, or does not answer, is no daemon to take over.
func TestEnsure_adoptsNoDeadOne(t *testing.T) {
	for name, harm := range map[string]unix.Signal{"killed": unix.SIGKILL, "stopped": unix.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			options := Options{DriverRoot: fakeRoot(t, fakeManners{}), RunDir: shortDir(t)}
			first := newManager(t, options)
			must.NoError(t, first.Ensure(t.Context(), gpu0))
			pid := pidOf(t, first, gpu0)
			first.Close()
			must.NoError(t, unix.Kill(pid, harm))
			if harm == unix.SIGKILL {
				_, err := syscall.Wait4(pid, nil, 0, nil)
				must.NoError(t, err)
			}
			second := newManager(t, options)
			second.timing.answer, second.timing.quit = 2*time.Second, 2*time.Second
			must.NoError(t, second.Ensure(t.Context(), gpu0))
			must.NotEq(t, pid, pidOf(t, second, gpu0))
		})
	}
}

// What it left behind holds the GPU and the lock.
func TestEnsure_endsOrphans(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{})})
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	tell(t, m, gpu0, "start_server")
	server := number(t, tell(t, m, gpu0, "get_server_list"))
	for pid, has := range map[int]bool{server: true, pidOf(t, m, gpu0): true, os.Getpid(): false} {
		must.Eq(t, has, m.Has(gpu0, pid))
		must.False(t, m.Has(gpu1, pid))
	}
	must.NoError(t, unix.Kill(pidOf(t, m, gpu0), unix.SIGKILL))
	until(t, m, gpu0, func(s Status) bool { return !s.Running })
	until(t, m, gpu0, func(s Status) bool { return s.Running })
	must.False(t, m.dirs(gpu0).isServer(server, m.namespace(t, gpu0)))
	must.Eq(t, "", tell(t, m, gpu0, "get_server_list"))
}

func (m *Manager) namespace(t *testing.T, uuid string) string {
	t.Helper()
	id, err := m.dirs(uuid).readIdentity()
	must.NoError(t, err)
	return id.Namespace
}

func TestEnsure_quitBehindItsBack(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{})})
	m.timing.ranWell, m.timing.firstPause = 0, time.Hour // so that there is no pause
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	pid := pidOf(t, m, gpu0)
	tell(t, m, gpu0, "quit")
	down := until(t, m, gpu0, func(s Status) bool { return !s.Running })
	must.StrContains(t, down.Reason, "ended with status 0")
	until(t, m, gpu0, func(s Status) bool { return s.Running })
	must.NotEq(t, pid, pidOf(t, m, gpu0))
}

func TestEnsure_twoGPUs(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{})})
	for _, uuid := range []string{gpu0, gpu1} {
		must.NoError(t, m.Ensure(t.Context(), uuid))
	}
	first, second := pidOf(t, m, gpu0), pidOf(t, m, gpu1)
	must.NotEq(t, first, second)
	must.NoError(t, m.Release(t.Context(), gpu0))
	mustHaveEnded(t, first)
	must.Eq(t, second, pidOf(t, m, gpu1))
	must.True(t, m.Status(gpu1).Running)
}

func TestRelease_busy(t *testing.T) {
	root := fakeRoot(t, fakeManners{Clients: "41\n42"})
	m := newManager(t, Options{DriverRoot: root})
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	tell(t, m, gpu0, "start_server")
	var busy *BusyError
	err := m.Release(t.Context(), gpu0)
	must.True(t, errors.As(err, &busy), must.Sprint(err))
	must.Eq(t, &BusyError{GPUUUID: gpu0, Clients: []int{41, 42}}, busy)
	must.True(t, m.Status(gpu0).Running)
	behave(t, root, fakeManners{})
	must.NoError(t, m.Release(t.Context(), gpu0))
}

// One that will not quit is killed.
func TestRelease_stays(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{Stays: true})})
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	m.timing.quit = 100 * time.Millisecond
	pid := pidOf(t, m, gpu0)
	must.NoError(t, m.Release(t.Context(), gpu0))
	mustHaveEnded(t, pid)
}

// A manager releases the daemon of an earlier plugin process, which it has not watched.
func TestRelease_DaemonOfAnEarlierPluginProcess(t *testing.T) {
	options := Options{DriverRoot: fakeRoot(t, fakeManners{}), RunDir: shortDir(t)}
	first := newManager(t, options)
	must.NoError(t, first.Ensure(t.Context(), gpu0))
	pid := pidOf(t, first, gpu0)
	first.Close()
	second := newManager(t, options)
	must.NoError(t, second.Release(t.Context(), gpu0))
	mustHaveEnded(t, pid)
	must.DirNotExists(t, second.dirs(gpu0).root)
}

// One that lost its sockets while nobody watched is ended all the same.
func TestRelease_pipeRemoved(t *testing.T) {
	options := Options{DriverRoot: fakeRoot(t, fakeManners{Clients: "41"}), RunDir: shortDir(t), GPUs: nvmltest.New(nvmltest.H200(0))}
	first := newManager(t, options)
	must.NoError(t, first.Ensure(t.Context(), gpu0))
	must.NoError(t, first.Serve(t.Context(), gpu0))
	pid, server := pidOf(t, first, gpu0), number(t, tell(t, first, gpu0, "get_server_list"))
	first.Close()
	must.NoError(t, os.RemoveAll(first.dirs(gpu0).pipe()))
	second := newManager(t, options)
	must.NoError(t, second.Release(t.Context(), gpu0))
	mustHaveEnded(t, pid)
	mustHaveEnded(t, server)
	must.Eq(t, nvml.ComputeDefault, modeOf(t, options.GPUs, gpu0))
}

// Somebody quits it while it has clients: these compute on, nobody else gets in, and the next one comes after them.
func TestEnsure_quitWithClients(t *testing.T) {
	root := fakeRoot(t, fakeManners{Clients: "41"})
	m := newManager(t, Options{DriverRoot: root})
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	must.NoError(t, m.Serve(t.Context(), gpu0))
	pid := pidOf(t, m, gpu0)
	d := m.dirs(gpu0)
	must.NoError(t, os.Remove(filepath.Join(d.pipe(), "control")))
	down := until(t, m, gpu0, func(s Status) bool { return !s.Running })
	must.Eq(t, "its socket for clients is gone; it is replaced when its clients have ended: process 41", down.Reason)
	must.ErrorContains(t, m.Ensure(t.Context(), gpu0), down.Reason)
	must.Eq(t, pid, pidOf(t, m, gpu0))
	behave(t, root, fakeManners{})
	must.Error(t, m.Ensure(t.Context(), gpu0))
	until(t, m, gpu0, func(s Status) bool { return s.Running })
	must.NotEq(t, pid, pidOf(t, m, gpu0))
}

func TestEnsure_fails(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, root string)
		want    string
	}{
		"no program": {
			func(t *testing.T, root string) {
				must.NoError(t, os.Remove(filepath.Join(root, "usr/bin", controlProgram)))
			},
			"no nvidia-cuda-mps-control in the driver root",
		},
		"no program to run": {
			func(t *testing.T, root string) {
				must.NoError(t, os.WriteFile(filepath.Join(root, "usr/bin", controlProgram), nil, 0o755))
			},
			"before it answered it ended with status 1",
		},
		"a program that ends": {
			func(t *testing.T, root string) { behave(t, root, fakeManners{Broken: true}) }, "before it answered it ended with status 1 (its output is in ",
		},
		"no library": {
			func(t *testing.T, root string) {
				must.NoError(t, os.Remove(filepath.Join(root, "usr/lib64/libcuda.so.1")))
			},
			"no libcuda.so.1 in the driver root",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := fakeRoot(t, fakeManners{})
			tc.prepare(t, root)
			m := newManager(t, Options{DriverRoot: root})
			m.timing.firstPause = time.Hour
			err := m.Ensure(t.Context(), gpu0)
			var down *DownError
			must.True(t, errors.As(err, &down), must.Sprint(err))
			must.True(t, down.Retriable())
			must.StrContains(t, err.Error(), tc.want)
			must.StrContains(t, m.Status(gpu0).Reason, tc.want)
			must.FileNotExists(t, filepath.Join(m.dirs(gpu0).client(), "control"))
		})
	}
}

// After a failure the daemon is restarted automatically.
func TestEnsure_recovers(t *testing.T) {
	root := fakeRoot(t, fakeManners{Broken: true})
	m := newManager(t, Options{DriverRoot: root})
	must.Error(t, m.Ensure(t.Context(), gpu0))
	behave(t, root, fakeManners{})
	until(t, m, gpu0, func(s Status) bool { return s.Running })
	must.NoError(t, m.Ensure(t.Context(), gpu0))

	behave(t, root, fakeManners{Broken: true})
	must.NoError(t, unix.Kill(pidOf(t, m, gpu0), unix.SIGKILL))
	until(t, m, gpu0, func(s Status) bool { return !s.Running })
	must.FileNotExists(t, filepath.Join(m.dirs(gpu0).client(), "control"), must.Sprint("a container would start without a daemon"))
}

// An older program refuses the option.
func TestEnsure_oneUser(t *testing.T) {
	log := &strings.Builder{}
	m := newManager(t, Options{
		DriverRoot: fakeRoot(t, fakeManners{OneUser: true}), Logger: hclog.New(&hclog.LoggerOptions{Output: log}),
	})
	must.NoError(t, m.Ensure(t.Context(), gpu0))
	must.Eq(t, Status{Running: true, OneUser: true}, m.Status(gpu0))
	m.Close()
	must.StrContains(t, log.String(), "serves programs of one user at a time")
}

// Nobody waits longer than he wants to.
func TestEnsure_mute(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{Mute: true})})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	must.ErrorIs(t, m.Ensure(ctx, gpu0), context.DeadlineExceeded)
	must.False(t, m.Status(gpu0).Running)
}

// A GPU whose compute mode cannot be set is not taken, and nothing is put back later that was never set.
func TestEnsure_computeMode(t *testing.T) {
	errRefused := errors.New("insufficient permissions")
	gpus := &stubborn{Fake: nvmltest.New(nvmltest.H200(0)), err: errRefused}
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{}), GPUs: gpus})
	m.timing.firstPause = time.Hour
	must.ErrorContains(t, m.Ensure(t.Context(), gpu0), errRefused.Error())
	must.False(t, m.Owns(gpu0))
	must.Eq(t, 0, len(m.dirs(gpu0).orphans(m.namespace(t, gpu0))))
}

type stubborn struct {
	*nvmltest.Fake
	err error
}

func (s *stubborn) SetComputeMode(context.Context, string, nvml.ComputeMode) error { return s.err }

// The kernel allows sockets no longer names.
func TestEnsure_longName(t *testing.T) {
	m := newManager(t, Options{DriverRoot: fakeRoot(t, fakeManners{}), RunDir: filepath.Join(shortDir(t), strings.Repeat("x", 60))})
	must.ErrorContains(t, m.Ensure(t.Context(), gpu0), "choose a shorter run_dir")
	must.False(t, m.Owns(gpu0))
}

func TestEnsure_noUUID(t *testing.T) {
	m := New(Options{RunDir: t.TempDir()})
	for _, uuid := range []string{"", "x", "../GPU-1", "GPU-/../x", ".."} {
		must.ErrorContains(t, m.Ensure(t.Context(), uuid), "is not the UUID of a GPU")
		must.ErrorContains(t, m.Release(t.Context(), uuid), "is not the UUID of a GPU")
	}
}

func TestBoundLogs(t *testing.T) {
	d := dirs{root: t.TempDir()}
	must.NoError(t, os.MkdirAll(d.log(), 0o755))
	large, small := filepath.Join(d.log(), "server.log"), filepath.Join(d.log(), "control.log")
	must.NoError(t, os.WriteFile(large, make([]byte, maxLogBytes+4096), 0o644))
	must.NoError(t, os.WriteFile(small, []byte("line\n"), 0o644))
	d.boundLogs(hclog.NewNullLogger())
	for file, want := range map[string]int64{large: 0, small: 5} {
		info, err := os.Stat(file)
		must.NoError(t, err)
		must.Eq(t, want, info.Size(), must.Sprint(file))
	}
}

// Events that the kernel lost may have been of removals, and those that follow are received still.
func TestWatch_LostEvents(t *testing.T) {
	events, lost, removals := make(chan fsnotify.Event), make(chan error), make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		collectRemovals(events, lost, removals)
	}()
	timeout := time.After(patience)
	for range 2 {
		events <- fsnotify.Event{Name: "control", Op: fsnotify.Create}
		select {
		case lost <- fsnotify.ErrEventOverflow:
		case <-timeout:
			t.Fatal("nobody reads the errors, so that the watcher stops")
		}
		select {
		case <-removals:
		case <-timeout:
			t.Fatal("lost events count for nothing")
		}
	}
	close(events)
	<-ended
}
