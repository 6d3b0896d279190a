package enforcement

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/needs"
	"github.com/tranche-gpu/tranche/internal/proc"
)

const gpu0, gpu1 = "GPU-0", "GPU-1"

// memory is a driver that keeps limits, by GPU and cgroup.
type memory struct {
	limits map[[2]string]uint64
	// lost has it drop what it is told, and err refuse it.
	lost bool
	err  error
}

func newMemory() *memory { return &memory{limits: map[[2]string]uint64{}} }

func (m *memory) SetMemoryLimit(_ context.Context, uuid, cgroup string, bytes uint64) error {
	if bytes == NoLimit {
		delete(m.limits, [2]string{uuid, cgroup})
	} else if !m.lost {
		m.limits[[2]string{uuid, cgroup}] = bytes
	}
	return m.err
}

func (m *memory) MemoryLimit(_ context.Context, uuid, cgroup string) (limitBytes, usedBytes uint64, err error) {
	limit, found := m.limits[[2]string{uuid, cgroup}]
	if !found && m.lost {
		return NoLimit, 0, nil
	}
	if !found {
		return 0, 0, errors.New("not found")
	}
	return limit, limit / 2, nil
}

func byDriver(uuid string, bytes uint64) *claim.Claim {
	return &claim.Claim{GPU: claim.GPU{UUID: uuid}, LimitBytes: bytes, Enforcement: claim.EnforcementDriver}
}

func TestLimits(t *testing.T) {
	library := &claim.Claim{GPU: claim.GPU{UUID: gpu1}, LimitBytes: 7}
	must.Eq(t, map[string]uint64{gpu0: 3}, Limits([]*claim.Claim{byDriver(gpu0, 1), byDriver(gpu0, 2), library}))
	must.Eq(t, map[string]uint64{gpu1: 8}, Limits([]*claim.Claim{library, byDriver(gpu1, 1)}))
	must.MapEmpty(t, Limits([]*claim.Claim{library, {Unlimited: true, GPU: claim.GPU{UUID: gpu0}}}))
}

// sleeper is a process in a cgroup of its own.
func sleeper(t *testing.T) (pid int, dir string) {
	t.Helper()
	needs.Root(t, "to make cgroups")
	h, err := mounted()
	must.NoError(t, err)
	dir = filepath.Join(h.dir, fmt.Sprintf("tranche-test-%d", time.Now().UnixNano()))
	must.NoError(t, os.Mkdir(dir, 0o755))
	return join1(t, dir), dir
}

// join1 starts a process in a cgroup.
func join1(t *testing.T, dir string) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(dir)
	})
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	return cmd.Process.Pid
}

func TestStart(t *testing.T) {
	pid, dir := sleeper(t)
	d := newMemory()
	claims := []*claim.Claim{byDriver(gpu0, 1<<30), byDriver(gpu1, 2<<30)}
	must.NoError(t, Start(t.Context(), d, pid, claims))
	must.Eq(t, map[[2]string]uint64{{gpu0, dir}: 1 << 30, {gpu1, dir}: 2 << 30}, d.limits)

	d.lost = true
	d.limits = map[[2]string]uint64{}
	must.ErrorContains(t, Start(t.Context(), d, pid, claims), "instead of")

	// A limit of a cgroup holds for all of its processes.
	other := join1(t, dir)
	must.ErrorContains(t, Start(t.Context(), newMemory(), pid, claims), fmt.Sprintf("process %d is in %s, too", other, dir))
}

func TestCgroup(t *testing.T) {
	cgroups, err := proc.Cgroups(os.Getpid())
	must.NoError(t, err)
	own := cgroups[unifiedID]
	_, err = hierarchy{"/cg", own}.below(os.Getpid())
	must.ErrorContains(t, err, "no cgroup v2 of its own")
	_, err = hierarchy{"/cg", filepath.Join(own, "below")}.below(os.Getpid())
	must.ErrorContains(t, err, "run Tranche in the host's cgroup namespace")
	dir, err := hierarchy{"/cg", filepath.Dir(own)}.of(os.Getpid())
	must.NoError(t, err)
	must.Eq(t, filepath.Join("/cg", filepath.Base(own)), dir)
}

func TestHold(t *testing.T) {
	pid, dir := sleeper(t)
	d := newMemory()
	claims := []*claim.Claim{byDriver(gpu0, 1<<30)}
	uses, err := Hold(t.Context(), d, pid, claims, nil)
	must.NoError(t, err)
	must.Eq(t, map[string]Use{gpu0: {LimitBytes: 1 << 30, UsedBytes: 1 << 29, Restored: true}}, uses)
	uses, err = Hold(t.Context(), d, pid, claims, nil)
	must.NoError(t, err)
	must.False(t, uses[gpu0].Restored)
	d.limits[[2]string{gpu0, dir}] = 5
	uses, err = Hold(t.Context(), d, pid, claims, nil)
	must.NoError(t, err)
	must.True(t, uses[gpu0].Restored)
	must.Eq(t, 1<<30, d.limits[[2]string{gpu0, dir}])

	// What is taken from the limit, as far as it is not used.
	claims[0].ID = "0123abcd"
	uses, err = Hold(t.Context(), d, pid, claims, map[string]uint64{claims[0].ID: 1 << 28})
	must.NoError(t, err)
	must.Eq(t, 3<<28, uses[gpu0].LimitBytes)
	uses, err = Hold(t.Context(), d, pid, claims, map[string]uint64{claims[0].ID: 1 << 40})
	must.NoError(t, err)
	must.Eq(t, 3<<27, uses[gpu0].LimitBytes) // half of it is used
}

func TestProbe(t *testing.T) {
	needs.Root(t, "to make cgroups")
	d := newMemory()
	must.NoError(t, Probe(t.Context(), d, gpu0))
	must.MapEmpty(t, d.limits)
	d.err = errors.New("Not Supported")
	must.ErrorIs(t, Probe(t.Context(), d, gpu0), d.err)
	must.ErrorContains(t, Probe(t.Context(), &memory{lost: true}, gpu0), "instead of")
	h, err := mounted()
	must.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(h.dir, "tranche-probe-"+strconv.Itoa(os.Getpid())))
	must.NoError(t, err)
	must.SliceEmpty(t, left)
}

// The driver finds the cgroup of a process by a controller, so that is enabled in all ancestors.
func TestEnableFrom(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a.slice/b.scope")
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.ErrorContains(t, enableFrom(root, dir, "misc"), "is not enabled for the cgroup "+dir)
	for _, at := range []string{root, filepath.Dir(dir)} {
		content, err := os.ReadFile(filepath.Join(at, "cgroup.subtree_control"))
		must.NoError(t, err)
		must.Eq(t, "+misc", string(content))
	}
	must.FileNotExists(t, filepath.Join(dir, "cgroup.subtree_control"))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "misc.current"), nil, 0o644))
	must.NoError(t, enableFrom(root, dir, "misc"))
}

func TestEnter(t *testing.T) {
	needs.Root(t, "to make cgroups")
	h, err := mounted()
	must.NoError(t, err)
	before, err := h.of(os.Getpid())
	must.NoError(t, err)
	d := newMemory()
	c := byDriver(gpu0, 1<<30)
	c.ID = "0123abcd"
	leave, err := Enter(t.Context(), d, c)
	must.NoError(t, err)
	at, err := Cgroup(os.Getpid())
	must.NoError(t, err)
	must.Eq(t, filepath.Join(before, runPrefix+c.ID), at)
	must.Eq(t, map[[2]string]uint64{{gpu0, at}: 1 << 30}, d.limits)
	must.NoError(t, leave())
	must.DirNotExists(t, at)

	d.err = errors.New("no")
	_, err = Enter(t.Context(), d, c)
	must.ErrorIs(t, err, d.err)
	must.DirNotExists(t, at)
}

// TestAsk has a hook's request granted, and refused.
func TestAsk(t *testing.T) {
	pid, dir := sleeper(t)
	stateDir, runDir := t.TempDir(), t.TempDir()
	ledger, err := claim.Open(claim.Options{StateDir: stateDir, RunDir: runDir})
	must.NoError(t, err)
	made, _, err := ledger.Reserve(t.Context(), claim.Request{
		GPU: claim.GPU{UUID: gpu0}, Slices: []string{claim.SliceName(gpu0, 0)}, LimitBytes: 1 << 30, Owner: claim.OwnerNomad,
		Enforcement: claim.EnforcementDriver,
	})
	must.NoError(t, err)
	request := Request{PID: pid, Claims: []string{made.ID}}
	must.NoError(t, status.MakeDir(runDir))
	must.ErrorIs(t, Ask(t.Context(), runDir, request), ErrNoGovernor)

	d := newMemory()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, d, ledger, runDir) }()
	socket := filepath.Join(runDir, status.Dir, socketName)
	for _, err := os.Lstat(socket); err != nil; _, err = os.Lstat(socket) {
		must.NoError(t, t.Context().Err())
		time.Sleep(time.Millisecond)
	}
	must.ErrorContains(t, Ask(t.Context(), runDir, request), "claim "+made.ID+" is not bound to it")
	must.ErrorContains(t, Ask(t.Context(), runDir, Request{PID: pid, Claims: []string{"00000000"}}), "1 of its 1 claims are gone")
	must.MapEmpty(t, d.limits)
	must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "runc", ID: "c1", InitPID: pid}))
	must.NoError(t, Ask(t.Context(), runDir, request))
	must.Eq(t, map[[2]string]uint64{{gpu0, dir}: 1 << 30}, d.limits)
	cancel()
	must.NoError(t, <-ended)

	// The socket that a governor leaves is in nobody's way.
	must.ErrorIs(t, Ask(t.Context(), runDir, request), ErrNoGovernor)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { ended <- Serve(ctx, d, ledger, runDir) }()
	for errors.Is(Ask(t.Context(), runDir, request), ErrNoGovernor) {
		must.NoError(t, t.Context().Err())
		time.Sleep(time.Millisecond)
	}
	cancel()
	must.NoError(t, <-ended)
}
