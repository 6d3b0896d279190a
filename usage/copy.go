package usage

import (
	"database/sql"
	"errors"
	"fmt"
)

// copyOwn copies to a shared database what the node has in its own, and the watermark with it, so that a node that changes
// to the shared one loses and repeats nothing. Its own stays as it is.
func (t tables) copyOwn(p Place) (err error) {
	p.Database = ""
	own, err := Open(t.ctx, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	if err := t.exec("DELETE FROM node WHERE id = $1", t.number); err != nil {
		return err
	}
	for _, table := range []struct{ name, columns string }{
		{"node", "$1, name, segment, position, begun, seen, boot"},
		{"gpu", "$1, uuid, idx, model, memory_bytes, replicas, whole_bytes"},
		{"claim", "$1, " + accountColumns},
		{"hour", "hour, $1, claim, created, gpu, mode, bytes, share, reserved_ms, observed_ms, used_gib_ms"},
		{"gap", "$1, since, until, reason"},
	} {
		if err := t.copyTable(own.db, table.name, table.columns); err != nil {
			return fmt.Errorf("copy the rows of %s: %w", own.name, err)
		}
	}
	return nil
}

// copyTable copies a table. In its columns, $1 stands for the node.
func (t tables) copyTable(from *sql.DB, table, columns string) error {
	rows, err := from.QueryContext(t.ctx, "SELECT "+columns+" FROM "+table, t.number) //nolint:gosec // the names are those above
	if err != nil {
		return err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	var all [][]any
	for rows.Next() {
		row, to := make([]any, len(types)), make([]any, len(types))
		for i := range row {
			to[i] = &row[i]
		}
		if err := rows.Scan(to...); err != nil {
			return err
		}
		for i := range row {
			if types[i].DatabaseTypeName() == "BOOLEAN" { // a number in SQLite
				row[i] = row[i] == int64(1)
			}
		}
		all = append(all, row)
		if len(all) == t.rows {
			if err := t.insert(table, all, ""); err != nil {
				return err
			}
			all = all[:0]
		}
	}
	return errors.Join(rows.Err(), t.insert(table, all, ""))
}
