package usage

import (
	"context"
	"database/sql"
	"errors"

	"github.com/tranche-gpu/tranche/claim/journal"
)

// tables reads and writes the database in one transaction.
type tables struct {
	ctx context.Context //nolint:containedctx // the transaction's, which ends with the call that has both
	tx  *sql.Tx
}

func (t tables) exec(statement string, args ...any) error {
	_, err := t.tx.ExecContext(t.ctx, statement, args...)
	return err
}

// mergeGPUs records what is known of GPUs now, and returns what was ever known.
func (t tables) mergeGPUs(now map[string]GPU) (map[string]GPU, error) {
	all := map[string]GPU{}
	rows, err := t.tx.QueryContext(t.ctx, `SELECT uuid, memory_bytes, replicas, coalesce(whole_bytes, 0)
		FROM gpu LEFT JOIN mig_instance USING (uuid)`)
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

func (t tables) readWatermark(b *books) (journal.Position, error) {
	p := journal.Position{Segment: 1}
	err := t.tx.QueryRowContext(t.ctx, "SELECT segment, position, begun, seen, boot FROM watermark").
		Scan(&p.Segment, &p.Offset, &b.begun, &b.seen, &b.boot)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return p, err
}

const accountColumns = `key, id, created, owner, until, boot, down, reserved, ended, final,
	namespace, job, parent_job, task_group, task, allocation, container, verified, peak_bytes,
	total_ms, gib_ms, gpu_ms`

func scanAccount(scan func(...any) error) (*account, error) {
	a := new(account)
	w := &a.workload
	return a, scan(&a.key, &a.id, &a.created, &a.owner, &a.until, &a.boot, &a.down, &a.reserved, &a.ended, &a.final,
		&w.Namespace, &w.Job, &w.ParentJob, &w.Group, &w.Task, &w.Allocation, &w.ContainerName, &w.Verified, &a.peakBytes,
		&a.total.Millis, &a.total.GiBMillis, &a.total.GPUMillis)
}

// openAccounts returns the accounts of claims that are not known to be gone.
func (t tables) openAccounts() (map[claimKey]*account, error) {
	rows, err := t.tx.QueryContext(t.ctx, "SELECT "+accountColumns+" FROM claim WHERE ended = 0")
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
	row := t.tx.QueryRowContext(t.ctx, "SELECT "+accountColumns+" FROM claim WHERE id = ? AND created = ?", k.id, k.created)
	a, err := scanAccount(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // no account is an answer
	}
	return a, err
}

// write writes all that the books have added, and the watermark.
func (t tables) write(b *books, end journal.Position) error {
	for _, step := range []func(*books) error{t.writeAccounts, t.writeDevices, t.writeHours, t.writeGaps} {
		if err := step(b); err != nil {
			return err
		}
	}
	return t.exec(`INSERT INTO watermark VALUES (1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
		SET segment = excluded.segment, position = excluded.position, begun = excluded.begun, seen = excluded.seen, boot = excluded.boot`,
		end.Segment, end.Offset, b.begun, b.seen, b.boot)
}

const writeAccount = `INSERT INTO claim (` + accountColumns + `)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE
	SET until = excluded.until, boot = excluded.boot, down = excluded.down,
	    reserved = excluded.reserved, ended = excluded.ended, final = excluded.final,
	    namespace = excluded.namespace, job = excluded.job, parent_job = excluded.parent_job, task_group = excluded.task_group,
	    task = excluded.task, allocation = excluded.allocation, container = excluded.container, verified = excluded.verified,
	    peak_bytes = excluded.peak_bytes, total_ms = excluded.total_ms, gib_ms = excluded.gib_ms, gpu_ms = excluded.gpu_ms
	RETURNING key`

// writeAccounts writes the accounts, and gives new ones their keys.
func (t tables) writeAccounts(b *books) error {
	statement, err := t.tx.PrepareContext(t.ctx, writeAccount)
	if err != nil {
		return err
	}
	defer statement.Close()
	for _, a := range b.sortedAccounts() {
		if b.samples != nil {
			a.peakBytes = max(a.peakBytes, b.samples.peaks[a.claimKey])
		}
		var key any
		if a.key != 0 {
			key = a.key
		}
		w := a.workload
		err := statement.QueryRowContext(t.ctx, key, a.id, a.created, a.owner, a.until, a.boot, a.down, a.reserved, a.ended, a.final,
			w.Namespace, w.Job, w.ParentJob, w.Group, w.Task, w.Allocation, w.ContainerName, w.Verified, a.peakBytes,
			a.total.Millis, a.total.GiBMillis, a.total.GPUMillis).Scan(&a.key)
		if err != nil {
			return err
		}
	}
	return nil
}

func (t tables) writeDevices(b *books) error {
	for _, d := range b.devices {
		g := b.gpus[d.uuid]
		if err := t.exec(`INSERT INTO gpu VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
			SET idx = excluded.idx, model = excluded.model, memory_bytes = excluded.memory_bytes, replicas = excluded.replicas`,
			d.uuid, d.index, d.model, g.MemoryBytes, g.Replicas); err != nil {
			return err
		}
		if g.WholeBytes == 0 {
			continue
		}
		if err := t.exec("INSERT INTO mig_instance VALUES (?, ?) ON CONFLICT DO UPDATE SET whole_bytes = excluded.whole_bytes",
			d.uuid, g.WholeBytes); err != nil {
			return err
		}
	}
	return nil
}

// writeHours adds to the rows. The accounts have their keys by now.
func (t tables) writeHours(b *books) error {
	statement, err := t.tx.PrepareContext(t.ctx, `INSERT INTO hour VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
		SET reserved_ms = reserved_ms + excluded.reserved_ms, observed_ms = observed_ms + excluded.observed_ms,
		    used_gib_ms = used_gib_ms + excluded.used_gib_ms`)
	if err != nil {
		return err
	}
	defer statement.Close()
	for k, sum := range b.hours {
		if _, err := statement.ExecContext(t.ctx, k.hour, b.accounts[k.claim].key, k.gpu, k.mode, k.bytes, k.share, sum.reserved,
			sum.observed, sum.used); err != nil {
			return err
		}
	}
	return nil
}

func (t tables) writeGaps(b *books) error {
	for _, g := range b.gaps {
		if err := t.exec("INSERT INTO gap VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET until = excluded.until", g.from, g.to, g.reason); err != nil {
			return err
		}
	}
	return nil
}
