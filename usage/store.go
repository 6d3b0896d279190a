// Package usage accounts what claims reserve and use: it turns the journal of the ledger into hourly rows in a database, each
// second once whatever is killed, and reports them. It changes no claim and decides nothing about one.
package usage

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"sync/atomic"
)

// schemaVersion is the version of schema.sql.
const schemaVersion = 2

//go:embed schema.sql
var schema string

// Place says where usage is kept.
type Place struct {
	// StateDir is the ledger's. Usage is in a SQLite database there, unless Database names another.
	StateDir string
	// Database is the URL of a PostgreSQL database that nodes share, without a password; empty for SQLite.
	Database string
	// Node is the name that reports have for this node.
	Node string
}

// Store is a database of usage. Its methods may be called concurrently, also by several processes.
type Store struct {
	place Place
	// name is the database's in errors.
	name string
	db   *sql.DB
	dialect
	// collected reports whether this process has collected.
	collected atomic.Bool
	// sinceBoot is how long before that the machine had booted.
	sinceBoot atomic.Int64
}

// dialect is what differs between the databases. All other statements are the same for both.
type dialect struct {
	// begin is run at the begin of a transaction, and version returns the version of the schema.
	begin, version string
	// lock ends a query whose row stays this transaction's alone.
	lock string
	// rows is how many rows one statement inserts: where each costs a round trip, many.
	rows int
	// node returns the number of the node in a state directory.
	node func(stateDir string) (int64, error)
	// explain adds the remedy to errors that an operator can fix.
	explain func(error) error
}

// Open opens a database. It creates that in a state directory if it is missing; a shared one has to be there.
func Open(ctx context.Context, p Place) (*Store, error) {
	s, open := &Store{place: p, name: databasePath(p.StateDir), dialect: sqliteDialect}, (*Store).openSQLite
	if p.Database != "" {
		s.name, s.dialect, open = databaseName(p.Database), postgresDialect, (*Store).openPostgres
	}
	if err := open(s, ctx); err != nil {
		if s.db != nil {
			_ = s.db.Close() // what it may say comes of the error
		}
		return nil, fmt.Errorf("open the usage database %s: %w", s.name, s.explain(err))
	}
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// in runs fn in a transaction, if the database has the version that this program knows.
func (s *Store) in(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return s.transaction(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, s.version).Scan(&version); err != nil {
			return err
		}
		if version != schemaVersion {
			return versionError(version)
		}
		return fn(ctx, tx)
	})
}

// transaction runs fn in a transaction. Where the connection is lost while it is committed, nobody knows whether it was; the
// watermark in it says so to the next collection.
func (s *Store) transaction(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if s.begin != "" {
		_, err = tx.ExecContext(ctx, s.begin)
	}
	if err == nil {
		err = fn(ctx, tx)
	}
	if err != nil {
		_ = tx.Rollback() // which the end of the connection does, too
		return err
	}
	return tx.Commit()
}

func versionError(version int) error {
	if version > schemaVersion {
		return fmt.Errorf("its version is %d, and this program knows version %d: a newer Tranche wrote it", version, schemaVersion)
	}
	return fmt.Errorf("its version is %d, and this program needs version %d", version, schemaVersion)
}
