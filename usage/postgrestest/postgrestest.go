// Package postgrestest runs a PostgreSQL server of Debian's for tests, as a user without rights, in a directory of its own.
package postgrestest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver "pgx"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/tranche-gpu/tranche/internal/needs"
)

// User is the role with the rights that nodes have, Reader one that may only read, and Password the password of both.
const (
	User     = "tranche"
	Reader   = "reader"
	Password = "it is a secret: 100%"
)

// nobody is the user who runs the server, which refuses to be root.
const nobody = 65534

// Server is a server that listens on a Unix socket.
type Server struct {
	// Dir has the socket, and is the server's alone.
	Dir       string
	programs  string
	options   []string
	cmd       *exec.Cmd
	databases int
}

// Start starts a server with the roles postgres, who needs no password, User and Reader. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	needs.That(t, len(found) > 0, "Debian's package postgresql")
	dir, err := os.MkdirTemp("", "pg") // a short name, as sockets need
	must.NoError(t, err)
	s := &Server{Dir: dir, programs: filepath.Dir(found[len(found)-1])}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.Signal(syscall.SIGCONT)
			_ = s.cmd.Process.Signal(syscall.SIGQUIT) // an end at once, which leaves no shared memory
			_ = s.cmd.Wait()
		}
		must.NoError(t, os.RemoveAll(dir))
	})
	if os.Geteuid() == 0 {
		must.NoError(t, os.Chown(dir, nobody, nobody))
	}
	out, err := s.command(s.programs+"/initdb", "--pgdata", s.data(), "--username", "postgres", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--no-locale").
		CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	rules := "local all postgres trust\nlocal all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
	must.NoError(t, os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(rules), 0o600))
	s.Run(t)
	for _, role := range []string{User, Reader} {
		s.Exec(t, "postgres", "CREATE ROLE "+role+" LOGIN PASSWORD '"+Password+"'")
	}
	return s
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// command is one that runs as the server's user.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// Run starts the server, again if Kill ended it, and returns once it answers.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	options := []string{
		"-D", s.data(), "-k", s.Dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB",
		"-c", "dynamic_shared_memory_type=mmap", "-c", "log_min_messages=panic",
	}
	s.cmd = s.command(s.programs+"/postgres", append(options, s.options...)...)
	s.cmd.Stderr = os.Stderr
	must.NoError(t, s.cmd.Start())
	db := s.open(t, "postgres")
	defer db.Close()
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error { return db.PingContext(context.Background()) }),
		wait.Timeout(time.Minute), wait.Gap(20*time.Millisecond)))
}

// ListenTLS starts the server again, which then listens on port 5432 of localhost as well, with TLS only. It returns the file
// with the certificate.
func (s *Server) ListenTLS(t testing.TB) (certificate string) {
	t.Helper()
	needs.Sandbox(t, "to listen on a port")
	key, certificate := filepath.Join(s.Dir, "key.pem"), filepath.Join(s.Dir, "certificate.pem")
	openssl := s.command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", certificate,
		"-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
	out, err := openssl.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	s.options = []string{"-c", "listen_addresses=127.0.0.1", "-c", "ssl=on", "-c", "ssl_key_file=" + key, "-c", "ssl_cert_file=" + certificate}
	s.Kill(t)
	s.Run(t)
	return certificate
}

// Kill kills all processes of the server.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	must.NoError(t, s.cmd.Process.Kill()) // the first, which would replace the others
	_ = s.cmd.Wait()
	s.cmd = nil
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return !s.Signal(syscall.SIGKILL) }),
		wait.Timeout(time.Minute), wait.Gap(5*time.Millisecond)))
	for _, stale := range []string{filepath.Join(s.data(), "postmaster.pid"), filepath.Join(s.Dir, ".s.PGSQL.5432.lock")} {
		_ = os.Remove(stale) // its number may be another process's by now
	}
}

// Signal sends a signal to all processes of the server, and reports whether there are any.
func (s *Server) Signal(signal syscall.Signal) (any bool) {
	processes, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range processes {
		if dir, err := os.Readlink(link); err != nil || dir != s.data() {
			continue
		}
		number, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		any = err == nil && syscall.Kill(number, signal) == nil || any
	}
	return any
}

// Create makes a database with tables, which User may change but not create, and returns User's URL for it, which names
// a file with the password.
func (s *Server) Create(t testing.TB, schema string) (database string) {
	t.Helper()
	s.databases++
	name := fmt.Sprint("usage", s.databases)
	s.Exec(t, "postgres", "CREATE DATABASE "+name)
	s.Exec(t, name, schema)
	s.Exec(t, name, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+User)
	s.Exec(t, name, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+Reader)
	passfile := filepath.Join(s.Dir, "pgpass")
	must.NoError(t, os.WriteFile(passfile, []byte("*:*:*:*:"+strings.ReplaceAll(Password, ":", `\:`)+"\n"), 0o600))
	return s.URL(User, name, url.Values{"passfile": {passfile}})
}

// URL returns that of a user and database.
func (s *Server) URL(user, database string, options url.Values) string {
	options.Set("host", s.Dir)
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database, RawQuery: options.Encode()}
	return u.String()
}

// Exec runs statements as the administrator.
func (s *Server) Exec(t testing.TB, database, statements string) {
	t.Helper()
	must.NoError(t, s.TryExec(t, database, statements))
}

// TryExec is Exec for statements that may fail.
func (s *Server) TryExec(t testing.TB, database, statements string) error {
	t.Helper()
	db := s.open(t, database)
	defer db.Close()
	_, err := db.ExecContext(context.Background(), statements)
	return err
}

func (s *Server) open(t testing.TB, database string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", s.URL("postgres", database, url.Values{}))
	must.NoError(t, err)
	return db
}
