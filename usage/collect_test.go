package usage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/internal/needs"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("TRANCHE_TEST_ROLE"); role != "" {
		if err := playRole(role, os.Getenv("TRANCHE_TEST_STATE"), os.Getenv("TRANCHE_TEST_RUN")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// playRole is what the test binary does as another process, until it is killed.
func playRole(role, state, run string) error {
	ctx := context.Background()
	ledger, err := claim.Open(claim.Options{StateDir: state, RunDir: run})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if gpu, ok := strings.CutPrefix(role, "churner "); ok {
		random := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for err == nil {
			err = churn(ctx, ledger, random, gpu)
		}
		return err
	}
	database := os.Getenv("TRANCHE_TEST_DATABASE")
	for {
		err := collectOnce(ctx, Place{StateDir: state, Database: database, Node: "gpu-1"}, ledger)
		if err != nil && database == "" { // a server may be away
			return err
		}
	}
}

func collectOnce(ctx context.Context, p Place, ledger *claim.Ledger) error {
	store, err := Open(ctx, p)
	if err != nil {
		return err
	}
	_, err = store.Collect(ctx, ledger, testGPUs, nil)
	return errors.Join(err, store.Close())
}

// starts a role, and returns once it is at work.
func (n *node) start(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "TRANCHE_TEST_ROLE="+role, "TRANCHE_TEST_STATE="+n.state, "TRANCHE_TEST_RUN="+n.run,
		"TRANCHE_TEST_DATABASE="+n.store.place.Database)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { endInit(cmd) })
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "ready\n", line)
	return cmd
}

// kill kills a process, which has to be at work still.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	must.NoError(t, cmd.Process.Kill())
	must.ErrorContains(t, cmd.Wait(), "signal: killed")
}

// witness is a claim that lives as long as the test, of which the record says how long that was.
func (n *node) witness(t *testing.T, gpu string) (end func() (id string, millis int64)) {
	t.Helper()
	c, _, err := n.ledger.Reserve(t.Context(), request(gpu, 16, 1))
	must.NoError(t, err)
	init, err := startInit()
	must.NoError(t, err)
	t.Cleanup(func() { endInit(init) })
	must.NoError(t, n.ledger.Bind(t.Context(), c.ID, claim.Container{Runtime: "runc", ID: "witness", InitPID: init.Process.Pid}))
	return func() (string, int64) {
		endInit(init)
		must.NoError(t, n.ledger.Release(t.Context(), c.ID, "witness"))
		claims, _, err := n.ledger.List(t.Context())
		must.NoError(t, err)
		for _, found := range claims {
			if found.ID == c.ID {
				return c.ID, found.Released.UnixMilli() - c.Created.UnixMilli()
			}
		}
		t.Fatal("the claim of a living container is gone")
		return "", 0
	}
}

// Whatever claims do and whenever it is collected, the rows are those of one collection of all.
func TestCollect_AtRandom(t *testing.T) { onBoth(t, testCollectAtRandom) }

func testCollectAtRandom(t *testing.T, n *node) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	n.collect(t)
	end := n.witness(t, "GPU-a")
	began := time.Now()
	for range 150 {
		must.NoError(t, churn(t.Context(), n.ledger, random, "GPU-a"))
		if random.IntN(4) == 0 {
			n.keepJournal(t)
			n.collect(t)
		}
	}
	id, millis := end()
	n.endAll(t)
	most := time.Since(began).Milliseconds()
	n.keepJournal(t)
	n.collect(t)
	rows, claims := n.store.rows(t)
	must.Greater(t, 50, len(rows))
	sameRows(t, n.once(t), rows)
	must.Eq(t, millis, claims[id])
	must.SliceEmpty(t, n.store.gaps(t))
	n.checkSlices(t, most)
}

// No name keeps the usage of others from being accounted.
func TestCollect_HostileNames(t *testing.T) {
	onBoth(t, func(t *testing.T, n *node) {
		n.collect(t)
		c, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
		must.NoError(t, err)
		must.NoError(t, n.ledger.NoteWorkload(t.Context(), c.ID, claim.Workload{Namespace: "'; DROP TABLE hour; --", Job: "a\x00b\xffc\U0001F600"}))
		eventually(t, "some time has passed", func() bool { return time.Since(c.Created) > 5*time.Millisecond })
		n.collect(t)
		must.NoError(t, n.ledger.Drop(t.Context(), c.ID))
		n.collect(t)
		lines := n.lines(t)
		must.Len(t, 1, lines)
		must.Eq(t, "'; DROP TABLE hour; --", lines[0].Namespace)
		must.Eq(t, "a\uFFFDb\uFFFDc\U0001F600", lines[0].Job)
	})
}

// checkSlices checks that no slice was counted for two claims at once: that all had no more than there was.
func (n *node) checkSlices(t *testing.T, most int64) {
	t.Helper()
	found, err := n.store.db.QueryContext(t.Context(), "SELECT gpu, CAST(SUM(reserved_ms * (bytes / 1073741824)) AS BIGINT) FROM hour GROUP BY gpu")
	must.NoError(t, err)
	defer found.Close()
	for found.Next() {
		var gpu string
		var sum int64
		must.NoError(t, found.Scan(&gpu, &sum))
		must.Between(t, 1, sum, 17*most)
	}
	must.NoError(t, found.Err())
}

// kill -9 of whoever changes claims, of whoever collects and of the database's server, at any time: no time is counted twice, and
// none is lost.
func TestCollect_Killed(t *testing.T) { onBoth(t, testCollectKilled) }

func testCollectKilled(t *testing.T, n *node) {
	lasts := 5 * time.Second
	if needs.Long() {
		lasts = 10 * time.Minute
	}
	n.collect(t)
	witnesses := []func() (string, int64){n.witness(t, "GPU-a"), n.witness(t, "GPU-b")}
	began := time.Now()
	roles := []string{"churner GPU-a", "churner GPU-b", "collector", "collector"}
	running := map[string]*exec.Cmd{}
	rounds := 0
	for ; time.Since(began) < lasts || rounds < 20; rounds++ {
		for i, role := range roles {
			name := fmt.Sprint(role, i)
			if running[name] == nil {
				running[name] = n.start(t, role)
			}
		}
		n.keepJournal(t)
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // so that the kill comes anywhere
		for name, cmd := range running {
			if rand.IntN(2) == 0 {
				kill(t, cmd)
				delete(running, name)
			}
		}
		if n.server != nil && rand.IntN(12) == 0 {
			n.server.Kill(t)
			n.server.Run(t)
		}
		n.keepJournal(t)
	}
	for _, cmd := range running {
		kill(t, cmd)
	}
	t.Logf("%d rounds", rounds)
	millis := map[string]int64{}
	for _, end := range witnesses {
		id, lasted := end()
		millis[id] = lasted
	}
	_, err := n.ledger.Sweep(t.Context())
	must.NoError(t, err)
	n.endAll(t)
	most := time.Since(began).Milliseconds()
	n.keepJournal(t)
	n.collect(t)

	rows, claims := n.store.rows(t)
	must.Greater(t, 20, len(rows))
	sameRows(t, n.once(t), rows)
	for id, lasted := range millis {
		must.Eq(t, lasted, claims[id])
	}
	must.SliceEmpty(t, n.store.gaps(t))
	n.checkSlices(t, most)
	segments, err := filepath.Glob(filepath.Join(n.ledger.Journal().Dir(), "*.log"))
	must.NoError(t, err)
	must.Len(t, 1, segments, must.Sprint("what is collected goes"))
}
