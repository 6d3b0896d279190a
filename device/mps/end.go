package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// end ends a daemon and its servers.
func (m *Manager) end(ctx context.Context, uuid string, id identity) error {
	if id.Process.PID == 0 {
		return nil
	}
	if id.Process.MayLive() {
		if err := m.quit(ctx, uuid, id); err != nil {
			return err
		}
	}
	return m.endServers(ctx, uuid, id)
}

// quit sends a daemon the command to quit, and kills it if it does not end.
func (m *Manager) quit(ctx context.Context, uuid string, id identity) error {
	p, err := follow(id.Process.PID, id, m.dirs(uuid).output())
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.leave()
	if !id.Process.MayLive() {
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, m.timing.quit)
	defer cancel()
	daemon, err := m.control(uuid)
	if err == nil {
		daemon.v3 = id.V3
		err = daemon.quit(timed)
	}
	if err == nil && p.wait(timed) {
		return nil
	}
	m.options.Logger.Warn("an MPS control daemon did not quit, and is killed", "gpu", uuid, "pid", p.pid, "error", err)
	if err := proc.SignalTo(p.file, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the MPS control daemon of GPU %s, process %d: %w", uuid, p.pid, err)
	}
	if !p.wait(ctx) {
		return fmt.Errorf("wait for the end of the MPS control daemon of GPU %s, process %d: %w", uuid, p.pid, ctx.Err())
	}
	return nil
}

// endServers kills the servers that a daemon has left behind: they hold the GPU, and no client can reach them.
func (m *Manager) endServers(ctx context.Context, uuid string, id identity) error {
	for _, pid := range m.dirs(uuid).orphans(id.Namespace) {
		p, err := follow(pid, identity{}, "")
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		// The process ID may have become another's before the descriptor was opened.
		if m.dirs(uuid).isServer(pid, id.Namespace) {
			m.options.Logger.Warn("ending a process that an MPS control daemon left behind", "gpu", uuid, "pid", pid)
			err = proc.SignalTo(p.file, unix.SIGKILL)
			if err == nil && !p.wait(ctx) {
				err = ctx.Err()
			}
		}
		p.leave()
		if err != nil {
			return fmt.Errorf("end process %d, which the MPS control daemon of GPU %s left behind: %w", pid, uuid, err)
		}
	}
	return nil
}

// orphans returns the processes that a daemon has left behind.
func (d dirs) orphans(namespace string) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && d.isServer(pid, namespace) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Has reports whether a process is the daemon of a GPU or one of its servers.
func (m *Manager) Has(uuid string, pid int) bool {
	id, err := m.dirs(uuid).readIdentity()
	return err == nil && (pid == id.Process.PID || m.dirs(uuid).isServer(pid, id.Namespace))
}

// isServer reports whether a process is one of a daemon's servers, by its mount namespace and an environment variable.
// Neither is enough alone: the kernel reuses the numbers of namespaces, and any process may have the variable.
func (d dirs) isServer(pid int, namespace string) bool {
	at := filepath.Join("/proc", strconv.Itoa(pid))
	if now, err := os.Readlink(filepath.Join(at, "ns/mnt")); err != nil || now != namespace || namespace == "" {
		return false
	}
	environ, err := os.ReadFile(filepath.Join(at, "environ"))
	for entry := range strings.SplitSeq(string(environ), "\x00") {
		dir, ok := strings.CutPrefix(entry, "CUDA_MPS_PIPE_DIRECTORY=")
		// A named server has a directory in the daemon's.
		if ok && (dir == d.pipe() || filepath.Dir(dir) == d.pipe()) {
			return err == nil
		}
	}
	return false
}
