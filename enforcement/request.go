package enforcement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor/status"
)

// socketName is the name of the governor's socket in its directory, to which root alone has access.
const socketName = "limits.sock"

// Request asks for the limits of a container that is being started, and whose claims are bound to it.
type Request struct {
	// PID is the container's init process.
	PID    int      `json:"pid"`
	Claims []string `json:"claims"`
}

// answer is the governor's answer to a Request. Without an error the limits stand.
type answer struct {
	Error string `json:"error,omitempty"`
}

// answersWithin bounds the time of a request: a driver that wakes up takes seconds.
const answersWithin = 15 * time.Second

// ErrNoGovernor is returned by Ask where no governor answers.
var ErrNoGovernor = errors.New("no governor runs")

// Ask has the governor grant a request. It returns once the limits stand.
func Ask(ctx context.Context, runDir string, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	var conn net.Conn
	err := atSocket(runDir, func(path string) (err error) {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "unix", path)
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w: %w", ErrNoGovernor, err)
	}
	if err != nil {
		return fmt.Errorf("connect to the governor: %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	var a answer
	err = json.NewEncoder(conn).Encode(r)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it has ended meanwhile", ErrNoGovernor)
	case err != nil:
		return fmt.Errorf("ask the governor for limits: %w", err)
	case a.Error != "":
		return errors.New(a.Error)
	}
	return nil
}

// Grant sets the limits of a request.
func Grant(ctx context.Context, d Driver, ledger *claim.Ledger, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	claims, _, err := ledger.List(ctx)
	if err != nil {
		return err
	}
	claims = slices.DeleteFunc(claims, func(c *claim.Claim) bool { return !slices.Contains(r.Claims, c.ID) })
	if len(claims) != len(r.Claims) {
		return fmt.Errorf("limit the container of process %d: %d of its %d claims are gone", r.PID, len(r.Claims)-len(claims), len(r.Claims))
	}
	for _, c := range claims {
		if c.Container == nil || c.Container.InitPID != r.PID || !claim.Alive(*c.Container) {
			return fmt.Errorf("limit the container of process %d: claim %s is not bound to it", r.PID, c.ID)
		}
	}
	if err := Start(ctx, d, r.PID, claims); err != nil {
		return fmt.Errorf("have the GPU driver limit the container of process %d: %w", r.PID, err)
	}
	return nil
}

// Serve answers requests until the context ends.
func Serve(ctx context.Context, d Driver, ledger *claim.Ledger, runDir string) error {
	var listener net.Listener
	err := atSocket(runDir, func(path string) (err error) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		var config net.ListenConfig
		listener, err = config.Listen(ctx, "unix", path)
		return err
	})
	if err != nil {
		return fmt.Errorf("make the socket for limits: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept requests for limits: %w", err)
		}
		go serve(ctx, d, ledger, conn)
	}
}

// serve answers one request.
func serve(ctx context.Context, d Driver, ledger *claim.Ledger, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answersWithin))
	var r Request
	if err := json.NewDecoder(io.LimitReader(conn, maxRequestBytes)).Decode(&r); err != nil {
		return
	}
	var a answer
	if err := Grant(ctx, d, ledger, r); err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(a)
}

// maxRequestBytes has room for the claims of any container.
const maxRequestBytes = 1 << 16

// atSocket calls a function with the path of the socket, which is short: an address has no room for long ones.
func atSocket(runDir string, f func(path string) error) error {
	dir, err := os.OpenFile(filepath.Join(runDir, status.Dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
}
