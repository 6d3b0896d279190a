package usage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/usage/postgrestest"
)

// proxy is a way to a server that loses connections while they commit.
type proxy struct {
	dir string
	// lose is whether the next connection that commits is lost before or after the server got to know.
	lose atomic.Value
}

const (
	never  = ""
	before = "before"
	after  = "after"
)

// newProxy returns a proxy in front of a server.
func newProxy(t *testing.T, s *postgrestest.Server) *proxy {
	t.Helper()
	p := &proxy{dir: filepath.Join(s.Dir, "p")}
	p.lose.Store(never)
	must.NoError(t, os.Mkdir(p.dir, 0o700))
	l, err := net.Listen("unix", filepath.Join(p.dir, ".s.PGSQL.5432"))
	must.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", filepath.Join(s.Dir, ".s.PGSQL.5432"))
			if err != nil {
				_ = client.Close()
				continue
			}
			go p.pass(client, server)
		}
	}()
	return p
}

func (p *proxy) pass(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	var lost atomic.Bool
	go func() {
		defer client.Close()
		defer server.Close()
		answers := make([]byte, 1<<16)
		for {
			n, err := server.Read(answers)
			if err != nil || lost.Load() {
				return
			}
			if _, err := client.Write(answers[:n]); err != nil {
				return
			}
		}
	}()
	message := make([]byte, 1<<16)
	for {
		n, err := client.Read(message)
		if err != nil {
			return
		}
		if bytes.Contains(message[:n], []byte("commit\x00")) {
			how := p.lose.Swap(never)
			lost.Store(how != never)
			if how == before {
				return
			}
		}
		if _, err := server.Write(message[:n]); err != nil {
			return
		}
	}
}

// Where the connection is lost in a commit, the next collection finds out whether it took effect.
func TestCollect_LostInCommit(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	server := postgrestest.Start(t)
	p := newProxy(t, server)
	database := strings.ReplaceAll(server.Create(t, PostgresSchema()), url.QueryEscape(server.Dir)+"&", url.QueryEscape(p.dir)+"&")
	must.StrContains(t, database, url.QueryEscape(p.dir))
	n := newNodeWith(t, Place{Database: database, Node: "gpu-1"})
	n.collect(t)
	end := n.witness(t, "GPU-a")
	for i := range 60 {
		must.NoError(t, churn(t.Context(), n.ledger, random, "GPU-a"))
		n.keepJournal(t)
		how := []string{never, before, after}[i%3]
		p.lose.Store(how)
		_, err := n.store.Collect(t.Context(), n.ledger, testGPUs, nil)
		must.Eq(t, how == never, err == nil, must.Sprint(how, err))
	}
	id, millis := end()
	n.endAll(t)
	n.keepJournal(t)
	n.collect(t)
	rows, claims := n.store.rows(t)
	sameRows(t, n.once(t), rows)
	must.Eq(t, millis, claims[id])
	must.SliceEmpty(t, n.store.gaps(t))
}

// While the server is gone or hangs, changes wait in the journal, and then all is accounted. The log has no password.
func TestRun_WithoutTheServer(t *testing.T) {
	server := postgrestest.Start(t)
	n := newNodeWith(t, Place{Database: server.Create(t, PostgresSchema()), Node: "gpu-1"})
	must.NoError(t, layout.Write(n.run, map[string]layout.GPU{"GPU-a": {MemoryBytes: 16 * gib}}))
	n.collect(t)
	end := n.witness(t, "GPU-a")
	server.Kill(t)
	c, stop := n.runLoop(t, time.Hour)
	random := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		must.NoError(t, churn(t.Context(), n.ledger, random, "GPU-a"))
	}
	n.keepJournal(t)
	must.Nil(t, c.Totals())
	server.Run(t)
	eventually(t, "it is accounted again", func() bool { return c.Totals() != nil })

	server.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := n.store.Collect(ctx, n.ledger, testGPUs, nil)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	server.Signal(syscall.SIGCONT)

	id, millis := end()
	n.endAll(t)
	n.keepJournal(t)
	log := stop()
	must.StrContains(t, log, "usage cannot be accounted; what is missing is accounted once this is mended")
	must.StrContains(t, log, "usage is accounted again")
	must.StrNotContains(t, log, "secret")
	rows, claims := n.store.rows(t)
	sameRows(t, n.once(t), rows)
	must.Eq(t, millis, claims[id])
	must.SliceEmpty(t, n.store.gaps(t))
}

// Nodes of one database keep apart what is theirs, also two of one name, and what is removed of one is not of the others.
func TestPostgres_Nodes(t *testing.T) {
	database := postgrestest.Start(t).Create(t, PostgresSchema())
	names := []string{"gpu-1", "gpu-2", "gpu-2"}
	had := map[string]int64{}
	var nodes []*node
	for i, name := range names {
		n := newNodeWith(t, Place{Database: database, Node: name})
		nodes = append(nodes, n)
		n.collect(t)
		end := n.witness(t, "GPU-a")
		for range 10 * i {
			must.NoError(t, churn(t.Context(), n.ledger, rand.New(rand.NewPCG(uint64(i), 1)), "GPU-b"))
		}
		n.collect(t)
		id, millis := end()
		had[id] = millis
		n.keepJournal(t)
		n.collect(t)
	}
	all, claims := nodes[0].store.rows(t)
	for id, millis := range had {
		must.Eq(t, millis, claims[id])
	}
	want := map[string]int64{}
	for _, n := range nodes {
		for key, millis := range n.once(t) {
			want[key] = millis
		}
	}
	sameRows(t, want, all)

	found, err := nodes[0].store.Nodes(t.Context())
	must.NoError(t, err)
	must.Eq(t, names[:2], found)
	q := Query{From: time.UnixMilli(0), To: time.Now().Add(time.Hour), Node: "gpu-1"}
	must.NoError(t, nodes[2].store.Lines(t.Context(), q, func(l Line) error {
		must.Eq(t, "gpu-1", l.Node)
		return nil
	}))
	totals, err := nodes[2].store.Totals(t.Context())
	must.NoError(t, err)
	must.MapNotContainsKey(t, totals.Claims, nodes[0].lines(t)[0].ClaimID)
	nodes[0].endAll(t)
	nodes[0].collect(t)
	must.NoError(t, nodes[0].store.Prune(t.Context(), time.Now().Add(2*time.Hour)))
	for _, l := range nodes[0].lines(t) {
		must.Eq(t, "gpu-2", l.Node)
	}
	must.Positive(t, len(nodes[0].lines(t)))
}

// A report names the nodes that were not collected up to its end.
func TestGaps_NodeThatIsAway(t *testing.T) {
	onBoth(t, func(t *testing.T, n *node) {
		n.collect(t)
		now := time.Now()
		q := Query{From: now.Add(-time.Hour), To: now.Add(time.Hour)}
		gaps, err := n.store.Gaps(t.Context(), q)
		must.NoError(t, err)
		must.SliceEmpty(t, gaps)
		_, err = n.store.db.ExecContext(t.Context(), "UPDATE node SET seen = $1", now.Add(-30*time.Minute).UnixMilli())
		must.NoError(t, err)
		gaps, err = n.store.Gaps(t.Context(), q)
		must.NoError(t, err)
		must.Len(t, 1, gaps)
		must.Eq(t, "gpu-1", gaps[0].Node)
		must.StrContains(t, gaps[0].Reason, "not collected yet")
		q.Node = "gpu-2"
		gaps, err = n.store.Gaps(t.Context(), q)
		must.NoError(t, err)
		must.SliceEmpty(t, gaps)
	})
}

// A node that changes to a shared database takes its rows with it, and nothing is lost or counted twice on the way.
func TestPostgres_CopiesOwnRows(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	n := newNode(t)
	end := n.witness(t, "GPU-a")
	for range 20 {
		must.NoError(t, churn(t.Context(), n.ledger, random, "GPU-a"))
	}
	n.keepJournal(t)
	n.collect(t)
	_, err := n.store.db.ExecContext(t.Context(), "INSERT INTO gap VALUES (1, 1, 2, 'a gap')")
	must.NoError(t, err)
	place := n.store.place
	place.Database = postgrestest.Start(t).Create(t, PostgresSchema())
	must.NoError(t, n.store.Close())
	other := openNode(t, place, n.run)
	for range 20 {
		must.NoError(t, churn(t.Context(), n.ledger, random, "GPU-a"))
		other.keepJournal(t)
		other.collect(t)
	}
	id, millis := end()
	other.endAll(t)
	other.keepJournal(t)
	other.collect(t)
	rows, claims := other.store.rows(t)
	must.Eq(t, millis, claims[id])
	sameRows(t, other.once(t), rows)
	must.Eq(t, []string{"a gap"}, other.store.gaps(t))
	for _, l := range other.lines(t) {
		must.Eq(t, "NVIDIA Test", l.GPU.Model)
	}
}

// Two machines with one state directory are not one node.
func TestCollect_CopiedStateDir(t *testing.T) {
	onBoth(t, func(t *testing.T, n *node) {
		n.collect(t)
		_, err := n.store.db.ExecContext(t.Context(), "UPDATE node SET boot = 'another machine''s'")
		must.NoError(t, err)
		_, err = n.store.Collect(t.Context(), n.ledger, testGPUs, nil)
		must.ErrorIs(t, err, errNotAlone)
		again := openNode(t, n.store.place, n.run)
		again.collect(t) // as after a reboot
	})
}

// What a server or its administrator may have wrong is refused with the remedy, and without the password.
func TestOpen_Refused(t *testing.T) {
	server := postgrestest.Start(t)
	good := server.Create(t, PostgresSchema())
	wrong := filepath.Join(t.TempDir(), "pgpass")
	must.NoError(t, os.WriteFile(wrong, []byte("*:*:*:*:secret guess\n"), 0o600))
	open := filepath.Join(t.TempDir(), "pgpass")
	must.NoError(t, os.WriteFile(open, []byte("*:*:*:*:secret\n"), 0o640))
	server.Exec(t, "postgres", "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
	must.ErrorContains(t, server.TryExec(t, "latin", PostgresSchema()), "createdb --encoding UTF8")
	passfile := filepath.Join(server.Dir, "pgpass")
	empty := server.Create(t, "SELECT 1")
	newer := server.Create(t, strings.Replace(PostgresSchema(), fmt.Sprintf("SELECT %d AS version", schemaVersion), "SELECT 9 AS version", 1))
	server.Exec(t, "postgres", "CREATE ROLE stranger LOGIN PASSWORD '"+postgrestest.Password+"'")
	for database, want := range map[string]string{
		strings.ReplaceAll(good, url.QueryEscape(passfile), url.QueryEscape(wrong)): "the password in the file that passfile= names",
		strings.ReplaceAll(good, url.QueryEscape(passfile), url.QueryEscape(open)):  "passfile: others may read " + open + ": give it mode 0600",
		strings.ReplaceAll(good, url.QueryEscape(passfile), "%2Fno%2Ffile"):         "usage.database: passfile: stat /no/file: no such file or directory; create it or correct the path",
		strings.Replace(good, "passfile=", "application_name=", 1):                  "the password in the file that passfile= names",
		strings.Replace(good, postgrestest.User+"@", "stranger@", 1):                "needs SELECT, INSERT, UPDATE and DELETE",
		strings.Replace(good, "/usage1?", "/absent?", 1):                            "`tranche usage --schema`",
		empty: "`tranche usage --schema`",
		newer: "its version is 9, and this program knows version 2",
		strings.Replace(good, url.QueryEscape(server.Dir), url.QueryEscape(server.Dir+"/nowhere"), 1): "nowhere",
		"postgres://tranche@192.0.2.1/tranche":                                                        "usage.database must have sslmode=verify-full",
		"postgres://tranche@192.0.2.1/tranche?sslmode=disable":                                        "usage.database must have sslmode=verify-full",
		"postgres://tranche@db.example.com,localhost/tranche":                                         "usage.database must have sslmode=verify-full",
		"postgres://tranche@localhost/tranche?sslmode=sometimes":                                      "sslmode",
		"postgres://tranche@localhost/tranche?sslrootcert=/no/such/file":                              "/no/such/file",
		"postgres://tranche:secret@localhost/tranche":                                                 "passfile=",
		"postgres://tranche@localhost/tranche?password=secret":                                        "passfile=",
		"postgres://tranche:sec/ret@localhost/tranche":                                                "must be the URL",
		"postgres://tranche:secret%@localhost/tranche":                                                "must be the URL",
		"postgres://tranche:secret@localhost:x/tranche":                                               "must be the URL",
		"host=localhost password=secret":                                                              "must be the URL",
		"postgres:tranche:secret@localhost":                                                           "must be the URL",
	} {
		_, err := Open(t.Context(), Place{StateDir: t.TempDir(), Database: database})
		must.ErrorContains(t, err, want)
		for _, secret := range []string{"secret", "sec/", "ret@"} {
			must.StrNotContains(t, err.Error(), secret)
		}
	}
}

// A node can work with the rights that docs/usage.md grants, and the statements there do what they say.
func TestDocs_Statements(t *testing.T) {
	page, err := os.ReadFile("../docs/usage.md")
	must.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	must.Len(t, 3, blocks)
	server := postgrestest.Start(t)
	database := strings.Replace(server.Create(t, "SELECT 1"), "/usage1?", "/docs?", 1)
	server.Exec(t, "postgres", "CREATE DATABASE docs")
	server.Exec(t, "docs", PostgresSchema())
	server.Exec(t, "docs", blocks[0][1])
	for _, name := range []string{"gpu-8", "gpu-9"} {
		n := newNodeWith(t, Place{Database: database, Node: name})
		n.collect(t)
		end := n.witness(t, "GPU-a")
		n.collect(t)
		_, _ = end()
		n.collect(t)
		must.NoError(t, n.store.Prune(t.Context(), time.UnixMilli(0)))
	}
	server.Exec(t, "docs", blocks[1][1])
	store, err := Open(t.Context(), Place{StateDir: t.TempDir(), Database: database})
	must.NoError(t, err)
	defer store.Close()
	nodes, err := store.Nodes(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{"gpu-8"}, nodes)
	query := strings.ReplaceAll(strings.ReplaceAll(blocks[2][1], "2026-12-01", "2100-01-01"), "2026-11-01", "2020-01-01")
	var namespace, node string
	var hours float64
	must.NoError(t, store.db.QueryRowContext(t.Context(), query).Scan(&namespace, &node, &hours))
	must.Eq(t, "gpu-8", node)
	must.Positive(t, hours)
}

// With verify-full, a server has to have a certificate of its name that is known.
func TestPostgres_TLS(t *testing.T) {
	server := postgrestest.Start(t)
	database := server.Create(t, PostgresSchema())
	certificate := server.ListenTLS(t)
	u, err := url.Parse(database)
	must.NoError(t, err)
	options := u.Query()
	options.Set("sslmode", "verify-full")
	options.Set("sslrootcert", certificate)
	try := func(host string) error {
		options.Set("host", host)
		u.RawQuery = options.Encode()
		store, err := Open(t.Context(), Place{StateDir: t.TempDir(), Database: u.String()})
		if err == nil {
			err = store.Close()
		}
		return err
	}
	must.NoError(t, try("localhost"))
	must.ErrorContains(t, try("127.0.0.1"), "certificate")
	options.Del("sslrootcert")
	must.ErrorContains(t, try("localhost"), "certificate")
	options.Set("sslmode", "disable")
	must.ErrorContains(t, try("localhost"), "pg_hba.conf")
}

// The password is read again for each connection, so that it can be replaced.
func TestPostgres_NewPassword(t *testing.T) {
	server := postgrestest.Start(t)
	n := newNodeWith(t, Place{Database: server.Create(t, PostgresSchema()), Node: "gpu-1"})
	n.collect(t)
	server.Exec(t, "postgres", "ALTER ROLE "+postgrestest.User+" PASSWORD 'another'")
	server.Exec(t, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+postgrestest.User+"'")
	must.Error(t, errors.Join(n.tryCollect(t), n.tryCollect(t)))
	must.NoError(t, os.WriteFile(filepath.Join(server.Dir, "pgpass"), []byte("*:*:*:*:another\n"), 0o600))
	n.collect(t)
}

func (n *node) tryCollect(t *testing.T) error {
	_, err := n.store.Collect(t.Context(), n.ledger, testGPUs, nil)
	return err
}

// Whatever the number of the node becomes, it stays the same, and one that is damaged is not replaced.
func TestNodeNumber(t *testing.T) {
	dir := t.TempDir()
	numbers := make(chan int64, 8)
	for range cap(numbers) {
		go func() {
			number, err := nodeNumber(dir)
			if err != nil {
				t.Error(err)
			}
			numbers <- number
		}()
	}
	first := <-numbers
	must.Positive(t, first)
	for range cap(numbers) - 1 {
		must.Eq(t, first, <-numbers)
	}
	files, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.Len(t, 1, files)
	must.NoError(t, os.WriteFile(filepath.Join(dir, nodeNumberName), nil, 0o600))
	_, err = nodeNumber(dir)
	must.ErrorContains(t, err, "write the id there")
}
