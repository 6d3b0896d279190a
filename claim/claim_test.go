package claim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/claimtest"
)

// TestMain lets the test binary be the other process where a test needs one.
func TestMain(m *testing.M) {
	if role := os.Getenv("TRANCHE_TEST_ROLE"); role != "" {
		playRole(role)
		return
	}
	os.Exit(m.Run())
}

var testGPU = GPU{
	UUID:         "GPU-11111111-2222-3333-4444-555555555555",
	Name:         "NVIDIA H200",
	ContextBytes: 300 << 20,
}

func newLedger(t *testing.T) *Ledger {
	t.Helper()
	root := t.TempDir()
	return ledgerAt(t, filepath.Join(root, "state"), filepath.Join(root, "run"))
}

func ledgerAt(t *testing.T, state, run string) *Ledger {
	t.Helper()
	l, err := Open(Options{StateDir: state, RunDir: run})
	must.NoError(t, err)
	claimtest.RemoveRegions(t, run)
	return l
}

func slicesOf(from, to int) []string {
	var s []string
	for i := from; i <= to; i++ {
		s = append(s, fmt.Sprintf("%s/slice-%03d", testGPU.UUID, i))
	}
	return s
}

func request(from, to int) Request {
	return Request{GPU: testGPU, Slices: slicesOf(from, to), LimitBytes: uint64(to-from+1) << 30, Owner: OwnerNomad}
}

func reserve(t *testing.T, l *Ledger, from, to int) (*Claim, Token) {
	t.Helper()
	c, token, err := l.Reserve(context.Background(), request(from, to))
	must.NoError(t, err)
	return c, token
}

// startProcess starts a process that does nothing until it is killed, in the role of a container's init.
func startProcess(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { endProcess(cmd) })
	return cmd
}

func endProcess(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func container(id string, cmd *exec.Cmd) Container {
	return Container{Runtime: "runc", ID: id, InitPID: cmd.Process.Pid}
}

func ids(claims []*Claim) []string {
	found := []string{}
	for _, c := range claims {
		found = append(found, c.ID)
	}
	return found
}

func list(t *testing.T, l *Ledger) []*Claim {
	t.Helper()
	claims, _, err := l.List(context.Background())
	must.NoError(t, err)
	return claims
}

// contents gives every file under the ledger's directory of records that means something, to compare before and after.
func contents(t *testing.T, l *Ledger) map[string]string {
	t.Helper()
	files := map[string]string{}
	must.NoError(t, filepath.WalkDir(l.claims, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == unfinishedName {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	}))
	return files
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestOpen(t *testing.T) {
	l, err := Open(Options{})
	must.NoError(t, err)
	must.Eq(t, "/var/lib/tranche/claims", l.claims)
	must.Eq(t, "/run/tranche/claims", l.regions)

	_, err = Open(Options{StateDir: "here", Logger: hclog.NewNullLogger()})
	must.ErrorContains(t, err, `the state directory "here" has to be an absolute path`)
	_, err = Open(Options{StateDir: "/srv/tranche", RunDir: "/srv/tranche/"})
	must.EqError(t, err, `state_dir and run_dir must be two directories, got "/srv/tranche" for both`)
}

func TestLookingLeavesNothingBehind(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	must.SliceEmpty(t, list(t, l))
	_, err := l.Sweep(ctx)
	must.NoError(t, err)
	_, err = l.Lookup(ctx, newToken())
	must.ErrorIs(t, err, ErrUnknownToken)
	_, err = l.PrepareRegion(ctx, "0badcafe", "c1", 0)
	must.ErrorIs(t, err, ErrUnknownClaim)
	must.ErrorIs(t, l.Drop(ctx, "0badcafe"), ErrUnknownClaim)
	must.DirNotExists(t, l.claims)
	must.DirNotExists(t, l.regions)
}

func TestDrop(t *testing.T) {
	l := newLedger(t)
	ctx := context.Background()
	c, token := reserve(t, l, 0, 1)
	kept, _ := reserve(t, l, 2, 3)
	must.NoError(t, l.Drop(ctx, c.ID))
	must.Eq(t, []string{kept.ID}, ids(list(t, l)))
	must.DirNotExists(t, l.regionPath(c.ID))
	_, err := l.Lookup(ctx, token)
	must.ErrorIs(t, err, ErrUnknownToken)

	must.NoError(t, l.Bind(ctx, kept.ID, container("c1", startProcess(t))))
	var held *HeldError
	must.True(t, asError(l.Drop(ctx, kept.ID), &held))
	must.Eq(t, []string{kept.ID}, ids(list(t, l)))
}
