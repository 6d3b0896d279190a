package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"github.com/tranche-gpu/tranche/governor/status"
	"github.com/tranche-gpu/tranche/internal/filelock"
)

// mostLogBytes is the size from which the log begins again with the next governor.
const mostLogBytes = 1 << 20

// child is a governor that this keeper has started.
type child struct {
	process *os.Process
	ended   chan error    // receives why it has ended
	closed  chan struct{} // is closed when it has ended
}

// done is closed when the child has ended; a nil child never ends.
func (c *child) done() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.closed
}

// start starts a governor in a session of its own, so that it outlives this process. What it writes goes to a file for the same
// reason.
func (k *Keeper) start() (*child, error) {
	if err := status.MakeDir(k.RunDir); err != nil {
		return nil, err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(k.logFile()); err == nil && info.Size() > mostLogBytes {
		flags |= os.O_TRUNC
	}
	log, err := os.OpenFile(k.logFile(), flags, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(k.Program, "governor", "--run-dir", k.RunDir, "--state-dir", k.StateDir, "--driver-root", k.DriverRoot) //nolint:noctx // it outlives this process
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{process: cmd.Process, ended: make(chan error, 1), closed: make(chan struct{})}
	go func() {
		c.ended <- cmd.Wait()
		close(c.closed)
	}()
	return c, nil
}

// held reports whether a governor has the lock, as each does while it runs.
func held(lockFile string) (bool, error) {
	f, err := os.OpenFile(lockFile, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = filelock.TryExclusive(f)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", lockFile, err)
	}
	return false, nil
}

// lastLine returns the end of a log.
func lastLine(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	const most = 300
	return string(text[:min(len(text), most)])
}
