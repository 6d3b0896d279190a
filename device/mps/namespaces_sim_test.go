package mps

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/device/internal/simtest"
)

// ready has a daemon of MPS v3 with these namespaces.
func (s *simulated) ready(t *testing.T, uuid string, namespaces ...Namespace) {
	t.Helper()
	must.NoError(t, s.Ensure(t.Context(), uuid))
	must.Eq(t, Status{Running: true, Namespaces: true}, s.Status(uuid))
	must.NoError(t, s.Serve(t.Context(), uuid))
	must.NoError(t, s.Assign(t.Context(), uuid, namespaces))
}

func (s *simulated) defined(t *testing.T, uuid string) map[string]int {
	t.Helper()
	daemon, err := s.control(uuid)
	must.NoError(t, err)
	found, err := daemon.namespaces(t.Context())
	must.NoError(t, err)
	return found
}

// Programs of two claims have what their namespaces have, and see nothing but the socket of their own.
func TestSimulated_namespaces(t *testing.T) {
	s := newSimulatedOf(t, "h200x2-r615.conf")
	const uuid, limitBytes = simtest.H200UUID1, 2048 << 20
	limited, whole := Namespace{Name: "aaaaaaaa", Percentage: 25, LimitBytes: limitBytes}, Namespace{Name: "bbbbbbbb", Percentage: 50}
	s.ready(t, uuid, limited, whole)
	must.Eq(t, map[string]int{"aaaaaaaa": 25, "bbbbbbbb": 50, "default": 0}, s.defined(t, uuid))
	d := s.dirs(uuid)
	must.Eq(t, []string{"aaaaaaaa", "bbbbbbbb"}, d.published())
	entries, err := os.ReadDir(d.namespace(limited.Name))
	must.NoError(t, err)
	must.Len(t, 1, entries)
	must.Eq(t, "control", entries[0].Name())
	entries, err = os.ReadDir(d.client())
	must.NoError(t, err)
	must.SliceEmpty(t, entries, must.Sprint("the main socket leads past the namespaces"))

	first := s.startIn(t, uuid, d.namespace(limited.Name), "fill", 1000)
	first.says(t, `"computing"`)
	second := s.startIn(t, uuid, d.namespace(whole.Name), "fill", 0) // it takes the rest
	second.says(t, `"computing"`)
	must.LessEq(t, limitBytes, s.bytes(t, first.cmd.Process.Pid))
	must.Greater(t, limitBytes*9/10, s.bytes(t, first.cmd.Process.Pid), must.Sprint("it got less than its limit"))
	must.Greater(t, 10*limitBytes, s.bytes(t, second.cmd.Process.Pid), must.Sprint("it has no limit"))
	clients, err := s.Clients(t.Context(), uuid)
	must.NoError(t, err)
	must.SliceContainsAll(t, clients, []int{first.cmd.Process.Pid, second.cmd.Process.Pid})

	// Who comes by a wrong directory is without MPS, and does not get the GPU.
	s.startIn(t, uuid, t.TempDir(), "fill", 0, "CUDA_VISIBLE_DEVICES="+uuid).says(t, `"name":"CUDA_ERROR_DEVICE_UNAVAILABLE"`)

	// The second claim is gone, and the first stays as it is.
	second.end()
	must.NoError(t, s.Assign(t.Context(), uuid, []Namespace{limited}))
	must.Eq(t, map[string]int{"aaaaaaaa": 25, "default": 0}, s.defined(t, uuid))
	must.Eq(t, []string{"aaaaaaaa"}, d.published())
	must.ErrorContains(t, s.Release(t.Context(), uuid), "has clients")
	first.end()
	idle(t, s.Manager, uuid)
	must.NoError(t, s.Release(t.Context(), uuid))
	must.Eq(t, 0, s.node.UsedBytes(t, uuid))
}

// A container reaches the daemon through the same directory after the death of the server, of the daemon, and of the plugin.
func TestSimulated_namespacesAgain(t *testing.T) {
	s := newSimulatedOf(t, "h200x2-r615.conf")
	const uuid = simtest.H200UUID0
	namespace := Namespace{Name: "aaaaaaaa", Percentage: 25}
	computes := func() {
		t.Helper()
		client := s.startIn(t, uuid, s.dirs(uuid).namespace(namespace.Name), "fill", 0)
		client.says(t, `"computing"`)
		clients, err := s.Clients(t.Context(), uuid)
		must.NoError(t, err)
		must.Eq(t, []int{client.cmd.Process.Pid}, clients)
		client.end()
		idle(t, s.Manager, uuid)
	}
	s.ready(t, uuid, namespace)
	computes()

	daemon, err := s.control(uuid)
	must.NoError(t, err)
	servers, err := daemon.servers(t.Context())
	must.NoError(t, err)
	must.NoError(t, unix.Kill(servers[0], unix.SIGKILL))
	for len(servers) > 0 {
		servers, err = daemon.servers(t.Context())
		must.NoError(t, err)
	}
	s.ready(t, uuid, namespace)
	computes()

	must.NoError(t, unix.Kill(pidOf(t, s.Manager, uuid), unix.SIGKILL))
	until(t, s.Manager, uuid, func(s Status) bool { return !s.Running })
	_, err = os.Stat(s.dirs(uuid).namespace(namespace.Name) + "/control")
	must.ErrorIs(t, err, os.ErrNotExist)
	until(t, s.Manager, uuid, func(s Status) bool { return s.Running })
	s.ready(t, uuid, namespace)
	computes()

	before := pidOf(t, s.Manager, uuid)
	s.Close()
	s.ready(t, uuid, namespace)
	must.Eq(t, before, pidOf(t, s.Manager, uuid))
	computes()
}

// The daemon accepts a server of a GPU that is missing, which vanishes then.
func TestSimulated_serverOfMissingGPU(t *testing.T) {
	s := newSimulatedOf(t, "h200x2-r615.conf")
	s.timing.serve = time.Second
	const uuid = simtest.H200UUID1
	must.NoError(t, s.Ensure(t.Context(), uuid))
	s.node.Run(t, "fault", "lost", "1", "on")
	var failed *ServerError
	must.True(t, errors.As(s.Serve(t.Context(), uuid), &failed))
	must.Error(t, s.Assign(t.Context(), uuid, []Namespace{{Name: "aaaaaaaa", Percentage: 25}}))
	must.SliceEmpty(t, s.dirs(uuid).published())
	s.node.Run(t, "fault", "lost", "1", "off")
}

// A namespace without its limits has all of the GPU.
func TestPublishNamespaces_withoutLimits(t *testing.T) {
	d := dirs{root: t.TempDir()}
	for name, there := range map[string]map[string]int{"none": {"aaaaaaaa": 0}, "others": {"aaaaaaaa": 100}, "no such": {}} {
		err := publishNamespaces(d, there, []Namespace{{Name: "aaaaaaaa", Percentage: 25}})
		must.ErrorContains(t, err, "instead of 25 %", must.Sprint(name))
		must.SliceEmpty(t, d.published())
	}
}
