// Package usage accounts what claims reserve and use: it turns the journal of the ledger into hourly rows in a database, each
// second once whatever is killed, and reports them. It changes no claim and decides nothing about one.
package usage

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite" // also registers the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// databaseName is the database's file in the state directory.
const databaseName = "usage.db"

// schemaVersion is the version of schema.sql, which the database has as its user_version.
const schemaVersion = 1

//go:embed schema.sql
var schema string

// schemaAdded are tables that a database of this version may lack. Programs that do not know them leave them alone.
const schemaAdded = `
CREATE TABLE IF NOT EXISTS mig_instance (
  uuid        TEXT PRIMARY KEY,
  whole_bytes INTEGER NOT NULL -- all memory of its GPU
) STRICT;
`

// Store is the database of a node's usage. Its methods may be called concurrently, also by several processes.
type Store struct {
	path string
	db   *sql.DB
}

// Exists reports whether there is a database in a state directory.
func Exists(stateDir string) bool {
	_, err := os.Stat(filepath.Join(stateDir, databaseName))
	return err == nil
}

// Open opens the database in a state directory, and creates it if it is missing.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	s := &Store{path: filepath.Join(stateDir, databaseName)}
	if err := s.open(ctx); err != nil {
		return nil, fmt.Errorf("open the usage database %s: %w", s.path, explain(err))
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	if !filepath.IsAbs(s.path) {
		return errors.New("the state directory has to be an absolute path")
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600) // SQLite would create it for everybody to read
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	options := url.Values{
		"_pragma": {"busy_timeout(60000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)"},
		"_txlock": {"immediate"},
	}
	dsn := url.URL{Scheme: "file", Path: s.path, RawQuery: options.Encode()}
	if s.db, err = sql.Open("sqlite", dsn.String()); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	if err := s.in(ctx, create); err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// in runs fn in a transaction.
func (s *Store) in(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		if failed := tx.Rollback(); !errors.Is(failed, sql.ErrTxDone) { // as it is when the context has ended
			err = errors.Join(err, failed)
		}
		return err
	}
	return tx.Commit()
}

// create creates the tables of a new database.
func create(ctx context.Context, tx *sql.Tx) error {
	var version int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	switch version {
	case schemaVersion:
		_, err := tx.ExecContext(ctx, schemaAdded)
		return err
	case 0:
		_, err := tx.ExecContext(ctx, schema+schemaAdded)
		return err
	}
	return fmt.Errorf("its version is %d, and this program knows version %d: a newer Tranche wrote it", version, schemaVersion)
}

// explain adds the remedy to errors that an operator can fix.
func explain(err error) error {
	var code *sqlite.Error
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w; it is for root alone: run this as root, or see its owner and mode", err)
	case errors.Is(err, unix.EISDIR):
		return fmt.Errorf("%w; the database is a file: remove the directory", err)
	case !errors.As(err, &code):
	case code.Code()&0xff == sqlite3.SQLITE_CORRUPT, code.Code()&0xff == sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w; stop tranche-agent, move it away with its -wal and -shm files or restore a copy, and start tranche-agent: "+
			"accounting goes on with what the journal has", err)
	case code.Code()&0xff == sqlite3.SQLITE_FULL, code.Code()&0xff == sqlite3.SQLITE_IOERR:
		return fmt.Errorf("%w; its disk is full or fails: free some space there (see `df -h`), or look at `dmesg`", err)
	}
	return err
}
