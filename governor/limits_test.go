package governor

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/driverlimit"
	"github.com/tranche-gpu/tranche/claim/health"
	"github.com/tranche-gpu/tranche/enforcement"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// limits is a driver that knows one cgroup.
type limits struct {
	bytes, used uint64
	err         error
}

func (l *limits) SetMemoryLimit(_ context.Context, _, _ string, bytes uint64) error {
	l.bytes = bytes
	return l.err
}

func (l *limits) MemoryLimit(context.Context, string, string) (limitBytes, usedBytes uint64, err error) {
	return l.bytes, l.used, l.err
}

// A container's limit is set where it does not stand, and what it uses is published, divided among its claims.
func TestEnforcer(t *testing.T) {
	needs.Root(t, "to make cgroups")
	runDir := t.TempDir()
	ledger, err := claim.Open(claim.Options{StateDir: t.TempDir(), RunDir: runDir})
	must.NoError(t, err)
	driver := &limits{used: 3 << 30}
	var logged bytes.Buffer
	e := &enforcer{driver: driver, ledger: ledger, runDir: runDir, logger: hclog.New(&hclog.LoggerOptions{Output: &logged})}
	must.NoError(t, e.look(t.Context()))
	must.Zero(t, driver.bytes)

	pid := inCgroup(t)
	var ids []string
	for i, gib := range []uint64{2, 4} {
		made, _, err := ledger.Reserve(t.Context(), claim.Request{
			GPU: claim.GPU{UUID: "GPU-0"}, Slices: []string{claim.SliceName("GPU-0", i)}, LimitBytes: gib << 30, Owner: claim.OwnerNomad,
			Enforcement: claim.EnforcementDriver,
		})
		must.NoError(t, err)
		must.NoError(t, ledger.Bind(t.Context(), made.ID, claim.Container{Runtime: "runc", ID: "c1", InitPID: pid}))
		ids = append(ids, made.ID)
	}
	must.NoError(t, e.look(t.Context()))
	must.Eq(t, 6<<30, driver.bytes)
	must.Eq(t, 3<<30, used(t, ledger, ids[0])+used(t, ledger, ids[1]))
	must.Between(t, 1<<30, used(t, ledger, ids[0]), 2<<30) // the first has at most its limit

	// What is uncounted is taken from the limit.
	claims, _, err := ledger.List(t.Context())
	must.NoError(t, err)
	must.NoError(t, health.Write(runDir, health.Report{Uncounted: map[string]health.Condition{
		ids[0]: {Problem: "managed memory", Bytes: 1 << 30, ChargedBytes: 1 << 30, Container: claims[0].ContainerKey()},
	}}))
	must.NoError(t, e.look(t.Context()))
	must.Eq(t, 5<<30, driver.bytes)

	// An error is published with the claim, and logged once.
	driver.err = errors.New("the GPU is lost")
	must.NoError(t, e.look(t.Context()))
	e.complain("all", e.look(t.Context()))
	e.complain("all", e.look(t.Context()))
	must.Eq(t, 1, strings.Count(logged.String(), "the GPU is lost"), must.Sprint(&logged))
	report, err := driverlimit.Read(runDir)
	must.NoError(t, err)
	must.StrContains(t, report.Claims[ids[1]].Problem, "the GPU is lost")
	_, err = ledger.UsageOf(claims[0])
	must.ErrorContains(t, err, "the GPU is lost")
}

func used(t *testing.T, ledger *claim.Ledger, id string) uint64 {
	t.Helper()
	u, err := ledger.Usage(t.Context(), id)
	must.NoError(t, err)
	return u.UsedBytes
}

// inCgroup starts a process in a cgroup of its own.
func inCgroup(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	at, err := enforcement.Cgroup(cmd.Process.Pid)
	root := filepath.Dir(at)
	if err != nil { // this process is in the root
		root = at
	}
	dir := filepath.Join(root, "tranche-test-"+strconv.FormatInt(time.Now().UnixNano(), 10))
	must.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(dir)
	})
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	return cmd.Process.Pid
}
