package usage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tranche-gpu/tranche/claim/journal"
)

// tables reads and writes what the database has of one node, in one transaction.
type tables struct {
	ctx context.Context //nolint:containedctx // the transaction's, which ends with the call that has both
	tx  *sql.Tx
	dialect
	number int64 // the node's
}

func (t tables) exec(statement string, args ...any) error {
	_, err := t.tx.ExecContext(t.ctx, statement, args...)
	return err
}

// insert inserts rows, many at once; conflict says what is done with those that are there. In it, excluded is the new row.
func (t tables) insert(table string, rows [][]any, conflict string) error {
	for chunk := range slices.Chunk(rows, t.rows) {
		var values strings.Builder
		var args []any
		for i, row := range chunk {
			for j, value := range row {
				args = append(args, storable(value))
				fmt.Fprintf(&values, "%s$%d", separator(i, j), len(args))
			}
			values.WriteString(")")
		}
		if err := t.exec("INSERT INTO "+table+" VALUES "+values.String()+" "+conflict, args...); err != nil {
			return err
		}
	}
	return nil
}

// storable returns a value without what texts in PostgreSQL may not have, and names that containers give themselves may.
func storable(value any) any {
	text, ok := value.(string)
	if !ok {
		return value
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// separator returns what comes before a value of a row.
func separator(row, column int) string {
	switch {
	case column > 0:
		return ", "
	case row > 0:
		return ", ("
	}
	return "("
}

// mergeGPUs records what is known of GPUs now, and returns what was ever known.
func (t tables) mergeGPUs(now map[string]GPU) (map[string]GPU, error) {
	all := map[string]GPU{}
	rows, err := t.tx.QueryContext(t.ctx, "SELECT uuid, memory_bytes, replicas, whole_bytes FROM gpu WHERE node = $1", t.number)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var uuid string
		var g GPU
		if err := rows.Scan(&uuid, &g.MemoryBytes, &g.Replicas, &g.WholeBytes); err != nil {
			return nil, err
		}
		all[uuid] = g
	}
	for uuid, g := range now {
		if g.MemoryBytes > 0 {
			all[uuid] = g
		}
	}
	return all, rows.Err()
}

// lockNode keeps other collections of this node waiting until the transaction ends. It reports whether the node is new.
func (t tables) lockNode(name string) (fresh bool, err error) {
	result, err := t.tx.ExecContext(t.ctx, "INSERT INTO node VALUES ($1, $2, 1, 0, 0, 0, '') ON CONFLICT (id) DO NOTHING", t.number, name)
	if err != nil {
		return false, err
	}
	inserted, err := result.RowsAffected()
	if err != nil || inserted > 0 {
		return inserted > 0, err
	}
	var id int64
	return false, t.tx.QueryRowContext(t.ctx, "SELECT id FROM node WHERE id = $1"+t.lock, t.number).Scan(&id)
}

func (t tables) readWatermark(b *books) (journal.Position, error) {
	var p journal.Position
	err := t.tx.QueryRowContext(t.ctx, "SELECT segment, position, begun, seen, boot FROM node WHERE id = $1", t.number).
		Scan(&p.Segment, &p.Offset, &b.begun, &b.seen, &b.boot)
	b.before = b.seen
	return p, err
}

const accountColumns = `id, created, owner, until, boot, down, reserved, ended, final,
	namespace, job, parent_job, task_group, task, allocation, container, verified, peak_bytes,
	total_ms, gib_ms, gpu_ms`

func scanAccount(scan func(...any) error) (*account, error) {
	a := &account{known: true}
	w := &a.workload
	return a, scan(&a.id, &a.created, &a.owner, &a.until, &a.boot, &a.down, &a.reserved, &a.ended, &a.final,
		&w.Namespace, &w.Job, &w.ParentJob, &w.Group, &w.Task, &w.Allocation, &w.ContainerName, &w.Verified, &a.peakBytes,
		&a.total.Millis, &a.total.GiBMillis, &a.total.GPUMillis)
}

// openAccounts returns the accounts of claims that are not known to be gone.
func (t tables) openAccounts() (map[claimKey]*account, error) {
	rows, err := t.tx.QueryContext(t.ctx, "SELECT "+accountColumns+" FROM claim WHERE node = $1 AND NOT ended", t.number)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	open := map[claimKey]*account{}
	for rows.Next() {
		a, err := scanAccount(rows.Scan)
		if err != nil {
			return nil, err
		}
		open[a.claimKey] = a
	}
	return open, rows.Err()
}

// find returns the account of a claim.
func (t tables) find(k claimKey) (*account, error) {
	row := t.tx.QueryRowContext(t.ctx, "SELECT "+accountColumns+" FROM claim WHERE node = $1 AND id = $2 AND created = $3",
		t.number, k.id, k.created)
	a, err := scanAccount(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // no account is an answer
	}
	return a, err
}

// write writes all that the books have added, and the watermark.
func (t tables) write(b *books, name string, end journal.Position) error {
	for _, step := range []func(*books) error{t.writeAccounts, t.writeDevices, t.writeHours, t.writeGaps} {
		if err := step(b); err != nil {
			return err
		}
	}
	return t.exec("UPDATE node SET name = $2, segment = $3, position = $4, begun = $5, seen = $6, boot = $7 WHERE id = $1",
		t.number, name, end.Segment, end.Offset, b.begun, b.seen, b.boot)
}

func (t tables) writeAccounts(b *books) error {
	var rows [][]any
	for _, a := range b.sortedAccounts() {
		if b.samples != nil {
			a.peakBytes = max(a.peakBytes, b.samples.peaks[a.claimKey])
		}
		w := a.workload
		rows = append(rows, []any{
			t.number, a.id, a.created, a.owner, a.until, a.boot, a.down, a.reserved, a.ended, a.final,
			w.Namespace, w.Job, w.ParentJob, w.Group, w.Task, w.Allocation, w.ContainerName, w.Verified, a.peakBytes,
			a.total.Millis, a.total.GiBMillis, a.total.GPUMillis,
		})
	}
	return t.insert("claim", rows, `ON CONFLICT (node, id, created) DO UPDATE
		SET until = excluded.until, boot = excluded.boot, down = excluded.down,
		    reserved = excluded.reserved, ended = excluded.ended, final = excluded.final,
		    namespace = excluded.namespace, job = excluded.job, parent_job = excluded.parent_job, task_group = excluded.task_group,
		    task = excluded.task, allocation = excluded.allocation, container = excluded.container, verified = excluded.verified,
		    peak_bytes = excluded.peak_bytes, total_ms = excluded.total_ms, gib_ms = excluded.gib_ms, gpu_ms = excluded.gpu_ms`)
}

func (t tables) writeDevices(b *books) error {
	var rows [][]any
	for _, d := range b.devices {
		g := b.gpus[d.uuid]
		rows = append(rows, []any{t.number, d.uuid, d.index, d.model, g.MemoryBytes, g.Replicas, g.WholeBytes})
	}
	return t.insert("gpu", rows, `ON CONFLICT (node, uuid) DO UPDATE
		SET idx = excluded.idx, model = excluded.model, memory_bytes = excluded.memory_bytes, replicas = excluded.replicas,
		whole_bytes = excluded.whole_bytes`)
}

// writeHours adds to the rows.
func (t tables) writeHours(b *books) error {
	var rows [][]any
	for k, sum := range b.hours {
		rows = append(rows, []any{
			k.hour, t.number, k.claim.id, k.claim.created, k.gpu, k.mode, k.bytes, k.share, sum.reserved, sum.observed, sum.used,
		})
	}
	return t.insert("hour", rows, `ON CONFLICT (hour, node, claim, created, gpu, mode, bytes, share) DO UPDATE
		SET reserved_ms = hour.reserved_ms + excluded.reserved_ms, observed_ms = hour.observed_ms + excluded.observed_ms,
		    used_gib_ms = hour.used_gib_ms + excluded.used_gib_ms`)
}

func (t tables) writeGaps(b *books) error {
	ends := map[gap]int64{} // without their ends: no statement may change a row twice
	for _, g := range b.gaps {
		ends[gap{from: g.from, reason: g.reason}] = g.to
	}
	var rows [][]any
	for g, to := range ends {
		rows = append(rows, []any{t.number, g.from, to, g.reason})
	}
	return t.insert("gap", rows, "ON CONFLICT (node, since, reason) DO UPDATE SET until = excluded.until")
}
