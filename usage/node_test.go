package usage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/claim/claimtest"
	"github.com/tranche-gpu/tranche/usage/postgrestest"
)

// node is a ledger and its database in directories of a test.
type node struct {
	state, run string
	ledger     *claim.Ledger
	store      *Store
	server     *postgrestest.Server // nil with SQLite
}

// newNode returns a node with a database of its own.
func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeWith(t, Place{Node: "gpu-1"})
}

// newNodeWith returns a node with a state directory of its own.
func newNodeWith(t *testing.T, place Place) *node {
	t.Helper()
	dir := t.TempDir()
	place.StateDir = filepath.Join(dir, "state")
	n := openNode(t, place, filepath.Join(dir, "run"))
	claimtest.RemoveRegions(t, n.run)
	return n
}

func openNode(t testing.TB, place Place, run string) *node {
	t.Helper()
	must.NoError(t, os.MkdirAll(place.StateDir, 0o700))
	ledger, err := claim.Open(claim.Options{StateDir: place.StateDir, RunDir: run})
	must.NoError(t, err)
	store, err := Open(t.Context(), place)
	must.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	return &node{state: place.StateDir, run: run, ledger: ledger, store: store}
}

// onBoth runs a test on a node with SQLite, and on one with PostgreSQL.
func onBoth(t *testing.T, test func(*testing.T, *node)) {
	t.Run("SQLite", func(t *testing.T) { test(t, newNode(t)) })
	t.Run("PostgreSQL", func(t *testing.T) {
		server := postgrestest.Start(t)
		n := newNodeWith(t, Place{Database: server.Create(t, PostgresSchema()), Node: "gpu-1"})
		n.server = server
		test(t, n)
	})
}

func (n *node) collect(t testing.TB) {
	t.Helper()
	_, err := n.store.Collect(t.Context(), n.ledger, testGPUs, nil)
	must.NoError(t, err)
}

var testGPUs = map[string]GPU{"GPU-a": {MemoryBytes: 16 * gib}, "GPU-b": {MemoryBytes: 16 * gib}}

func request(gpu string, from, count int) claim.Request {
	var names []string
	for number := from; number < from+count; number++ {
		names = append(names, claim.SliceName(gpu, number))
	}
	return claim.Request{
		GPU: claim.GPU{UUID: gpu, Name: "NVIDIA Test"}, Slices: names, SliceBytes: gib, LimitBytes: uint64(count) * gib, Owner: claim.OwnerNomad,
		Compute: &claim.Compute{Share: 100, Max: 1000, Class: claim.ClassNormal},
	}
}

// startInit starts the first process of a container, which ends with this process.
func startInit() (*exec.Cmd, error) {
	cmd := exec.Command("sleep", "3600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, cmd.Start()
}

func endInit(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// churn changes claims at random, as Nomad, engines and operators do. Others may do so, too, and refusals are no errors.
func churn(ctx context.Context, l *claim.Ledger, random *rand.Rand, gpu string) error {
	from, count := random.IntN(12), 1+random.IntN(4)
	if random.IntN(6) == 0 {
		return churnFit(ctx, l, random, gpu)
	}
	made, _, err := l.Reserve(ctx, request(gpu, from, count))
	if errors.As(err, new(*claim.HeldError)) {
		return nil
	}
	if err != nil {
		return err
	}
	id := made.ID
	steps := []func() error{
		func() error { return l.Drop(ctx, id) },
		func() error { return l.NoteWorkload(ctx, id, claim.Workload{Namespace: "default", Job: "job-" + gpu}) },
		func() error {
			_, err := l.ChangeCompute(ctx, id, func(had claim.Compute) (claim.Compute, error) {
				had.Share = 1 + random.IntN(900)
				return had, nil
			})
			return err
		},
		func() error { return runContainer(ctx, l, id) },
		func() error { return runContainer(ctx, l, id) },
		func() error { _, err := l.Sweep(ctx); return err },
	}
	for range random.IntN(5) {
		err := steps[random.IntN(len(steps))]()
		if err != nil && !errors.Is(err, claim.ErrUnknownClaim) && !errors.As(err, new(*claim.HeldError)) && !errors.As(err, new(*claim.BoundError)) {
			return err
		}
	}
	return nil
}

// churnFit makes a claim outside Nomad, of whose slices nothing is superseded.
func churnFit(ctx context.Context, l *claim.Ledger, random *rand.Rand, gpu string) error {
	made, err := l.ReserveFit(ctx, claim.FitRequest{
		Candidates: []claim.Candidate{{GPU: claim.GPU{UUID: gpu}, Slices: 16}},
		SliceBytes: gib, LimitBytes: gib * 3 / 2, Owner: claim.OwnerExternal,
	})
	if errors.As(err, new(*claim.NoRoomError)) {
		return nil
	}
	if err != nil || random.IntN(2) == 0 {
		return errors.Join(err, cancel(ctx, l, made))
	}
	return runContainer(ctx, l, made.ID)
}

func cancel(ctx context.Context, l *claim.Ledger, c *claim.Claim) error {
	if c == nil {
		return nil
	}
	return l.Cancel(ctx, c.ID)
}

// runContainer binds a claim to a container that ends at once, and releases it.
func runContainer(ctx context.Context, l *claim.Ledger, id string) error {
	init, err := startInit()
	if err != nil {
		return err
	}
	err = l.Bind(ctx, id, claim.Container{Runtime: "runc", ID: "c-" + id, InitPID: init.Process.Pid})
	endInit(init)
	if err != nil {
		return err
	}
	return l.Release(ctx, id, "c-"+id)
}

// endAll removes all claims.
func (n *node) endAll(t testing.TB) {
	t.Helper()
	claims, problems, err := n.ledger.List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, problems)
	for _, c := range claims {
		must.NoError(t, n.ledger.DropInUse(t.Context(), c.ID))
	}
}

// rows returns the rows of a database, and the sum for each claim.
func (s *Store) rows(t testing.TB) (rows map[string]int64, claims map[string]int64) {
	t.Helper()
	rows, claims = map[string]int64{}, map[string]int64{}
	found, err := s.db.QueryContext(t.Context(), "SELECT hour, claim, created, gpu, bytes, share, reserved_ms FROM hour")
	must.NoError(t, err)
	defer found.Close()
	for found.Next() {
		var hour, created, bytes, share, reserved int64
		var id, gpu string
		must.NoError(t, found.Scan(&hour, &id, &created, &gpu, &bytes, &share, &reserved))
		must.Between(t, 1, reserved, hourMillis)
		rows[fmt.Sprint(hour, id, created, gpu, bytes, share)] = reserved
		claims[id] += reserved
	}
	must.NoError(t, found.Err())
	return rows, claims
}

func (s *Store) gaps(t testing.TB) []string {
	t.Helper()
	found, err := s.db.QueryContext(t.Context(), "SELECT reason FROM gap ORDER BY since, reason")
	must.NoError(t, err)
	defer found.Close()
	var reasons []string
	for found.Next() {
		var reason string
		must.NoError(t, found.Scan(&reason))
		reasons = append(reasons, reason)
	}
	return reasons
}

// keepJournal keeps links to all segments of the journal, of which a collection removes some.
func (n *node) keepJournal(t testing.TB) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(n.ledger.Journal().Dir(), "*.log"))
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(n.state+"-copy/journal", 0o700))
	for _, segment := range segments {
		err := os.Link(segment, filepath.Join(n.state+"-copy/journal", filepath.Base(segment)))
		must.True(t, err == nil || errors.Is(err, os.ErrExist) || errors.Is(err, os.ErrNotExist), must.Sprint(err))
	}
}

// once returns the rows of a database that collects all events at once, at the end.
func (n *node) once(t testing.TB) map[string]int64 {
	t.Helper()
	n.keepJournal(t)
	other := openNode(t, Place{StateDir: n.state + "-copy"}, n.run)
	other.collect(t)
	rows, _ := other.store.rows(t)
	return rows
}

// sameRows fails the test with the first differences.
func sameRows(t testing.TB, want, got map[string]int64) {
	t.Helper()
	var differences []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if got[key] != want[key] {
			differences = append(differences, fmt.Sprintf("%s: %d, want %d", key, got[key], want[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok {
			differences = append(differences, fmt.Sprintf("%s: %d, want none", key, got[key]))
		}
	}
	if len(differences) > 0 {
		t.Fatalf("%d of %d rows differ:\n%s", len(differences), len(want), strings.Join(differences[:min(len(differences), 10)], "\n"))
	}
}
