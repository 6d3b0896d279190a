package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PluginPIDs are the processes that run one of the plugins, by the name of its binary.
func (n *Node) PluginPIDs(name string) ([]int, error) {
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, exe := range processes {
		target, err := os.Readlink(exe)
		// The kernel appends this once another file has the name.
		if err != nil || strings.TrimSuffix(target, " (deleted)") != n.PluginPath(name) {
			continue // It ended meanwhile, or is another program.
		}
		pid, err := strconv.Atoi(strings.Split(exe, "/")[2])
		if err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// KillPlugin kills a plugin's processes with SIGKILL.
func (n *Node) KillPlugin(name string) error {
	pids, err := n.PluginPIDs(name)
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("no process runs %s", name)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill %s (process %d): %w", name, pid, err)
		}
	}
	return nil
}

// Reboot does to the node what a power cut and a boot do: every process is gone, and so is all that lives in memory
// only (mounts, /run, containerd's state directory, Tranche's run directory); what is on disk stays. Then containerd
// and the agent start as they would at boot.
func (n *Node) Reboot(ctx context.Context) error {
	n.Agent.Kill()
	if err := n.Containerd.Kill(); err != nil {
		return err
	}
	if err := killOthers(); err != nil {
		return err
	}
	if err := unmountUnder(n.Dir); err != nil {
		return err
	}
	volatile := []string{filepath.Join(n.Dir, "run"), filepath.Join(n.Containerd.Dir, "state")}
	for _, name := range []string{"/run/containerd", "/run/netns", "/run/runc", "/run/cni"} {
		if err := unmountUnder(name); err != nil {
			return err
		}
		volatile = append(volatile, name)
	}
	for _, dir := range volatile {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("empty %s as a boot does: %w", dir, err)
		}
	}
	if err := n.Containerd.Restart(ctx); err != nil {
		return err
	}
	if err := n.Agent.Start(ctx); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// killOthers kills every process of the sandbox's PID namespace but its init and the caller, and waits until they are
// gone. It must only be called in a sandbox: the test is for the init's name.
func killOthers() error {
	name, err := os.ReadFile("/proc/1/cmdline")
	if err != nil || !strings.HasPrefix(string(name), "sandbox-init") {
		return errors.New("not in a sandbox: refusing to kill every process")
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range processes {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == 1 || pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		if err := killAndWait(pid); err != nil {
			return err
		}
	}
	return nil
}

func killAndWait(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return awaitEnd(fd)
}

// WaitGone waits until a process has ended.
func WaitGone(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	return awaitEnd(fd)
}

// awaitEnd waits, for at most ten seconds, until the process of a pidfd has ended.
func awaitEnd(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 0:
			return errors.New("the process has not ended within ten seconds")
		}
		return err
	}
}
