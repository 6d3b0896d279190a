package usage

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tranche-gpu/tranche/internal/namedfile"
)

var postgresDialect = dialect{
	// A node that vanishes in the midst keeps its row locked until the server ends the transaction. A commit that is reported
	// has to last, since the journal is removed then.
	begin:   "SET LOCAL idle_in_transaction_session_timeout = '5min'; SET LOCAL lock_timeout = '1min'; SET LOCAL synchronous_commit = on",
	version: "SELECT version FROM tranche_schema",
	lock:    " FOR UPDATE",
	rows:    500,
	node:    nodeNumber,
	explain: explainPostgres,
}

// PostgresSchema returns the statements that create the tables in a PostgreSQL database. An administrator runs them, so that
// nodes need no right to create anything. A database that could not store some names is refused.
func PostgresSchema() string {
	return fmt.Sprintf(`BEGIN;

DO $$ BEGIN
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'the database must have the encoding UTF8: create it by createdb --encoding UTF8 --template template0';
  END IF;
END $$;

CREATE TABLE tranche_schema AS SELECT %d AS version;

%s
COMMIT;
`, schemaVersion, schema)
}

// CheckDatabase returns an error if a text is no URL of a PostgreSQL database, or has a secret in it. The error does not have
// the text, which may have one in any place then.
func CheckDatabase(database string) error {
	const example = `such as "postgres://tranche@db.example.com/tranche?sslmode=verify-full"`
	u, err := url.Parse(database)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Opaque != "" {
		return errors.New("must be the URL of a PostgreSQL database, " + example)
	}
	if _, secret := u.User.Password(); secret || u.Query().Has("password") || u.Query().Has("sslpassword") {
		return errors.New("must not have a password, which others could read: write that to a file in the format of pgpass, mode 0600, and " +
			"name it by passfile=/etc/tranche/pgpass in the URL")
	}
	return nil
}

// databaseName is a database's URL without its options.
func databaseName(database string) string {
	u, err := url.Parse(database)
	if err != nil || CheckDatabase(database) != nil {
		return "of PostgreSQL"
	}
	return (&url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path}).String()
}

// The times that a connection may take to be made, and may be idle: hundreds of nodes share the server, and each needs it for
// a moment once a minute.
const (
	connectTimeout = 10 * time.Second
	idleTimeout    = 5 * time.Second
)

func (s *Store) openPostgres(ctx context.Context) error {
	if err := CheckDatabase(s.place.Database); err != nil {
		return fmt.Errorf("usage.database %w", err)
	}
	config, err := parsePostgres(s.place.Database)
	if err != nil {
		return err
	}
	// Each connection reads the password and certificates again, which may have been replaced.
	again := stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) error {
		fresh, err := parsePostgres(s.place.Database)
		if err == nil {
			*c = *fresh
		}
		return err
	})
	s.db = stdlib.OpenDB(*config, again)
	s.db.SetMaxOpenConns(4)
	s.db.SetConnMaxIdleTime(idleTimeout)
	return s.in(ctx, func(context.Context, *sql.Tx) error { return nil })
}

// parsePostgres parses the URL, with the environment and files that it or PostgreSQL's conventions name.
func parsePostgres(database string) (*pgx.ConnConfig, error) {
	if err := checkFiles(database); err != nil {
		return nil, fmt.Errorf("usage.database: %w", err)
	}
	c, err := pgx.ParseConfig(database)
	if err != nil {
		return nil, fmt.Errorf("usage.database: %w", err)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "tranche"
	}
	ways := append([]*pgconn.FallbackConfig{{Host: c.Host, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	for _, way := range ways {
		if way.TLSConfig == nil && !onThisMachine(way.Host) {
			return nil, errors.New("usage.database must have sslmode=verify-full, or at least require: what is sent to another machine must be encrypted")
		}
	}
	return c, nil
}

// checkFiles returns an error if a file that the URL names is missing, of which pgx does not say which it is, or the one with the
// password not secret.
func checkFiles(database string) error {
	u, err := url.Parse(database)
	if err != nil {
		return err
	}
	options := u.Query()
	for _, option := range []string{"passfile", "sslrootcert", "sslcert", "sslkey", "servicefile"} {
		path := options.Get(option)
		if option == "sslrootcert" && path == "system" { // the certificates of the system
			continue
		}
		if err := namedfile.Check(option, path); err != nil {
			return err
		}
	}
	passfile := options.Get("passfile")
	if info, err := os.Stat(passfile); err == nil && info.Mode()&0o077 != 0 {
		return fmt.Errorf("passfile: others may read %s: give it mode 0600", passfile)
	}
	return nil
}

// onThisMachine reports whether a host is a directory of Unix sockets, or one of the loopback interface.
func onThisMachine(host string) bool {
	address := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || host == "localhost" || address != nil && address.IsLoopback()
}

func explainPostgres(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case "28P01", "28000": // invalid_password, invalid_authorization_specification
		return fmt.Errorf("%w; see the user in usage.database, the password in the file that passfile= names, and the server's pg_hba.conf", err)
	case "3D000", "42P01": // invalid_catalog_name, undefined_table
		return fmt.Errorf("%w; create the database and its tables: `tranche usage --schema` prints them, docs/usage.md has all steps", err)
	case "55P03": // lock_not_available
		return fmt.Errorf("%w; another collection of this node, such as the agent's, takes long; try again later", err)
	case "42501": // insufficient_privilege
		return fmt.Errorf("%w; the user needs SELECT, INSERT, UPDATE and DELETE on the tables, or SELECT for reports elsewhere than on nodes", err)
	}
	return err
}

// nodeNumberName is the file in the state directory with the number of the node in a shared database.
const nodeNumberName = "usage-node"

// nodeNumber returns the number of the node in a shared database, and makes one at random if there is none. It belongs to the
// journal, and not to the node's name: a node that is installed anew begins anew, and two of one name are not mixed up.
func nodeNumber(stateDir string) (int64, error) {
	path := filepath.Join(stateDir, nodeNumberName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = writeNodeNumber(path); err == nil {
			text, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return 0, err
	}
	number, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || number <= 0 {
		return 0, fmt.Errorf("%s has no number: write the id there that the table node has for this node", path)
	}
	return number, nil
}

// writeNodeNumber writes a new number, unless another process does at this moment.
func writeNodeNumber(path string) error {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), nodeNumberName+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintln(f, binary.LittleEndian.Uint64(random[:])>>1|1)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
