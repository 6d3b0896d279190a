package usage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim/layout"
	"github.com/tranche-gpu/tranche/internal/needs"
)

// runLoop runs the loop until the test calls stop, which returns what it has logged when it has ended.
func (n *node) runLoop(t *testing.T, keep time.Duration) (c *Collector, stop func() string) {
	t.Helper()
	var log bytes.Buffer
	c = NewCollector(Options{
		Ledger: n.ledger, Store: n.store, GPUs: func(context.Context) map[string]GPU { return layoutOf(t, n.run) }, Keep: keep,
		Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), sampleEvery: 20 * time.Millisecond, collectEvery: 50 * time.Millisecond,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	stop = func() string { cancel(); <-done; return log.String() }
	t.Cleanup(func() { stop() })
	return c, stop
}

func layoutOf(t *testing.T, runDir string) map[string]GPU {
	gpus, err := Layout(runDir)
	if err != nil {
		t.Error(err)
	}
	return gpus
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(ok), wait.Timeout(time.Minute), wait.Gap(10*time.Millisecond)), must.Sprint(what))
}

func (n *node) lines(t *testing.T) (lines []Line) {
	t.Helper()
	must.NoError(t, n.store.Lines(t.Context(), Query{From: time.UnixMilli(0), To: time.Now().Add(time.Hour)}, func(l Line) error {
		lines = append(lines, l)
		return nil
	}))
	return lines
}

// The loop accounts what is reserved and observes what is used; when it ends, all is accounted up to then.
func TestRun(t *testing.T) {
	n := newNode(t)
	must.NoError(t, layout.Write(n.run, map[string]layout.GPU{"GPU-a": {MemoryBytes: 16 * gib}}))
	end := n.witness(t, "GPU-a")
	c, stop := n.runLoop(t, 24*time.Hour)
	eventually(t, "a sample is accounted", func() bool {
		lines := n.lines(t)
		return len(lines) > 0 && lines[0].ObservedMillis > 0
	})
	id, lasted := end()
	stop()
	var reserved, observed int64
	for _, l := range n.lines(t) {
		must.Eq(t, id, l.ClaimID)
		must.Eq(t, WholeShare/10, l.Share)
		reserved, observed = reserved+l.ReservedMillis, observed+l.ObservedMillis
	}
	must.Eq(t, lasted, reserved)
	must.Between(t, 1, observed, reserved)
	total := c.Totals().Claims[id]
	must.Eq(t, lasted, total.Millis)
	must.InDelta(t, float64(lasted)/10, total.GPUMillis, 0.001)
	must.InDelta(t, float64(lasted), total.GiBMillis, 0.001)
}

// What a claim reserves and does not use is known of the last day, as far as it was observed.
func TestTotals_Unused(t *testing.T) {
	n := newNode(t)
	held, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 4))
	must.NoError(t, err)
	samples := NewSamples(time.Hour)
	began := time.Now()
	samples.Add(held, began, 0, 0)
	eventually(t, "some time has passed", func() bool { return time.Since(began) > 50*time.Millisecond })
	ended := time.Now()
	samples.Add(held, ended, 3*gib, 3*gib)
	_, err = n.store.Collect(t.Context(), n.ledger, testGPUs, samples)
	must.NoError(t, err)
	totals, err := n.store.Totals(t.Context())
	must.NoError(t, err)
	seconds := float64(ended.UnixMilli()-began.UnixMilli()) / 1000
	must.InDelta(t, seconds, 3600*totals.UnusedGiBHours[held.ID], 0.005, must.Sprint("one of four is unused"))

	_, err = n.store.db.ExecContext(t.Context(), "UPDATE hour SET hour = hour - 26")
	must.NoError(t, err)
	totals, err = n.store.Totals(t.Context())
	must.NoError(t, err)
	must.MapEmpty(t, totals.UnusedGiBHours)
}

// While the journal cannot be written, claims are accounted from the ledger, and the gap is named.
func TestRun_JournalThatCannotBeWritten(t *testing.T) {
	needs.Root(t, "to mount a file for reading only")
	n := newNode(t)
	n.collect(t)
	_, stop := n.runLoop(t, 0)
	segment := filepath.Join(n.ledger.Journal().Dir(), "0000000001.log")
	must.NoError(t, os.MkdirAll(n.ledger.Journal().Dir(), 0o700))
	must.NoError(t, os.WriteFile(segment, nil, 0o600))
	must.NoError(t, unix.Mount(segment, segment, "", unix.MS_BIND, ""))
	unmount := sync.OnceValue(func() error { return unix.Unmount(segment, unix.MNT_DETACH) })
	t.Cleanup(func() { must.NoError(t, unmount()) })
	must.NoError(t, unix.Mount("", segment, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	c, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
	must.NoError(t, err)
	eventually(t, "the claim is accounted, and the gap is named", func() bool {
		return len(n.lines(t)) > 0 && len(n.store.gaps(t)) == 1
	})
	must.NoError(t, unmount())
	must.NoError(t, n.ledger.Drop(t.Context(), c.ID))
	eventually(t, "the gap has ended", func() bool { return n.ledger.Journal().Gap() == nil })
	must.StrContains(t, stop(), `reason="the journal of claims could not be written;`)
}

// While no collection succeeds, samples are dropped after a while.
func TestRun_SamplesDoNotPileUp(t *testing.T) {
	n := newNode(t)
	held, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
	must.NoError(t, err)
	must.NoError(t, n.store.Close())
	c := NewCollector(Options{
		Ledger: n.ledger, Store: n.store, GPUs: func(context.Context) map[string]GPU { return testGPUs }, Logger: hclog.NewNullLogger(),
	})
	for _, ago := range []time.Duration{3*time.Hour + SampleEvery, 3 * time.Hour, SampleEvery, 0} {
		c.samples.Add(held, time.Now().Add(-ago), 1, 1)
	}
	c.collect(t.Context())
	must.NotEq(t, "", c.failed)
	for _, spans := range c.samples.spans {
		must.Len(t, 1, spans, must.Sprint("the one of the last minute"))
	}
}

// Rows that are too old go, with the claims that had nothing else.
func TestPrune(t *testing.T) {
	n := newNode(t)
	c, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
	must.NoError(t, err)
	must.NoError(t, n.ledger.Drop(t.Context(), c.ID))
	held, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
	must.NoError(t, err)
	eventually(t, "some time has passed", func() bool { return time.Since(held.Created) > 5*time.Millisecond })
	n.collect(t)
	must.NoError(t, n.store.Prune(t.Context(), time.Now().Add(2*time.Hour)))
	must.SliceEmpty(t, n.lines(t))
	var claims int
	must.NoError(t, n.store.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM claim").Scan(&claims))
	must.Eq(t, 1, claims, must.Sprint("the one that is there still"))
	eventually(t, "it is accounted again, from a millisecond on", func() bool {
		n.collect(t)
		return len(n.lines(t)) > 0
	})
	must.Eq(t, held.ID, n.lines(t)[0].ClaimID)
}

// A clock that is set forward makes no row old, and one that is set back does not make it older.
func TestKeptSince(t *testing.T) {
	began := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	const keep = 24 * time.Hour
	for _, c := range []struct{ now, want time.Time }{
		{began.Add(2 * time.Hour), began.Add(-22 * time.Hour)},
		{began.AddDate(1, 0, 0), began.Add(-22 * time.Hour)},
		{began.AddDate(-1, 0, 0), began.AddDate(-1, 0, 0).Add(-keep)},
	} {
		must.Eq(t, c.want, keptSince(c.now, began, 2*time.Hour, keep))
	}
}

// A newer program's database is not written to.
func TestOpen_NewerDatabase(t *testing.T) {
	n := newNode(t)
	_, err := n.store.db.ExecContext(t.Context(), "PRAGMA user_version = 9")
	must.NoError(t, err)
	_, err = Open(t.Context(), n.store.place)
	must.ErrorContains(t, err, "its version is 9")
}

// A journal or a database that is gone, or older than it was, costs at most what only it had, and nothing is counted twice.
func TestCollect_LostFiles(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *node){
		"the journal": func(t *testing.T, n *node) { must.NoError(t, os.RemoveAll(n.ledger.Journal().Dir())) },
		"an older database": func(t *testing.T, n *node) {
			must.NoError(t, n.store.Close())
			must.NoError(t, os.Rename(n.state+"-backup", databasePath(n.state)))
			store, err := Open(t.Context(), n.store.place)
			must.NoError(t, err)
			n.store = store
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			end := n.witness(t, "GPU-a")
			n.collect(t)
			_, err := n.store.db.ExecContext(t.Context(), "VACUUM INTO ?", n.state+"-backup")
			must.NoError(t, err)
			c, _, err := n.ledger.Reserve(t.Context(), request("GPU-a", 0, 1))
			must.NoError(t, err)
			n.collect(t)
			must.NoError(t, n.ledger.Drop(t.Context(), c.ID))
			n.collect(t)
			lose(t, n)
			id, lasted := end()
			n.collect(t)
			n.collect(t)
			var sum int64
			for _, l := range n.lines(t) {
				if l.ClaimID == id {
					sum += l.ReservedMillis
				}
			}
			must.Eq(t, lasted, sum)
		})
	}
}

// A MIG instance stays the part of its GPU that it was when that is no longer known.
func TestCollect_SharedInstance(t *testing.T) {
	n := newNode(t)
	r := request("MIG-a", 0, 4)
	r.Compute = nil
	c, _, err := n.ledger.Reserve(t.Context(), r)
	must.NoError(t, err)
	collect := func(gpus map[string]GPU) {
		after := time.Now()
		eventually(t, "some time has passed", func() bool { return time.Since(after) > 5*time.Millisecond })
		_, err := n.store.Collect(t.Context(), n.ledger, gpus, nil)
		must.NoError(t, err)
	}
	collect(map[string]GPU{"MIG-a": {MemoryBytes: 16 * gib, WholeBytes: 64 * gib}})
	_, first := n.store.rows(t)
	collect(nil)
	rows, second := n.store.rows(t)
	must.Greater(t, first[c.ID], second[c.ID])
	for row := range rows {
		must.StrHasSuffix(t, fmt.Sprint(4*gib, wholeShare/16), row)
	}
}
