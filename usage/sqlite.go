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
	"strings"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite" // also registers the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// migration makes the tables of version 2 of those of version 1. "-- schema" stands for the schema.
//
//go:embed migration.sql
var migration string

var sqliteDialect = dialect{
	version: "SELECT user_version FROM pragma_user_version",
	rows:    1,
	node:    func(string) (int64, error) { return onlyNode, nil },
	explain: explainSQLite,
}

// onlyNode is the number of the node in a database of its own.
const onlyNode = 1

// databasePath is the path of the database in a state directory.
func databasePath(stateDir string) string { return filepath.Join(stateDir, "usage.db") }

// Exists reports whether there is a database in a state directory.
func Exists(stateDir string) bool {
	_, err := os.Stat(databasePath(stateDir))
	return err == nil
}

func (s *Store) openSQLite(ctx context.Context) error {
	if !filepath.IsAbs(s.name) {
		return errors.New("the state directory has to be an absolute path")
	}
	if err := os.MkdirAll(filepath.Dir(s.name), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(s.name, os.O_RDWR|os.O_CREATE, 0o600) // SQLite would create it for everybody to read
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	options := url.Values{
		"_pragma": {"busy_timeout(60000)", "journal_mode(WAL)", "synchronous(FULL)"},
		"_txlock": {"immediate"},
	}
	dsn := url.URL{Scheme: "file", Path: s.name, RawQuery: options.Encode()}
	if s.db, err = sql.Open("sqlite", dsn.String()); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	return s.transaction(ctx, createSQLite)
}

// createSQLite creates the tables of a new database, and changes those of an old one.
func createSQLite(ctx context.Context, tx *sql.Tx) error {
	var version int
	if err := tx.QueryRowContext(ctx, sqliteDialect.version).Scan(&version); err != nil {
		return err
	}
	statements := strings.ReplaceAll(schema, "\n);", "\n) WITHOUT ROWID;") // which halves the rows
	switch version {
	case schemaVersion:
		return nil
	case 0:
	case 1:
		statements = strings.Replace(migration, "-- schema", statements, 1)
	default:
		return versionError(version)
	}
	_, err := tx.ExecContext(ctx, statements+fmt.Sprintf("PRAGMA user_version = %d;", schemaVersion))
	return err
}

func explainSQLite(err error) error {
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
