// Command sandbox runs a program in mount, PID, IPC and network namespaces of its own, so that a whole node (containerd,
// Nomad, bridges, iptables rules, containers) can be started for a test or the demo and is gone without trace when
// the program ends, however it ends: the kernel kills what is left in the PID namespace and drops the mounts and
// the network with the namespaces. It has a cgroup of its own, too, which looks like the root inside and is removed with
// all that was made below it.
//
//	sandbox [--dir DIR] [--keep-file FILE] COMMAND [ARG…]
//
// Inside, /run is empty, TMPDIR lies in it, /var/lib is a scratch layer over the host's, /dev/null is a node of its own,
// the loopback interface is up and there is no other. With --keep-file the sandbox writes the host's process ID of its
// init there, for nsenter(1).
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	initRole = "sandbox-init"
	// insideEnv says to a program that it is in a sandbox.
	insideEnv = "TRANCHE_SANDBOX"
	// keepDirEnv names the directory of --dir to the init.
	keepDirEnv = "SANDBOX_DIR"
	// tempDir is TMPDIR inside: short, since Unix socket names are limited to 107 bytes (unix(7)).
	tempDir = "/run/tmp"
)

func main() {
	code, err := run(os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		if code == 0 {
			code = 125
		}
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	if args[0] == initRole {
		return runInit(args[1:])
	}
	args = args[1:]
	flags := flag.NewFlagSet("sandbox", flag.ContinueOnError)
	keepFile := flags.String("keep-file", "", "write the process ID of the sandbox's init to this file")
	dir := flags.String("dir", "", "directory that stays the host's")
	if err := flags.Parse(args); err != nil {
		return 125, err
	}
	args = flags.Args()
	if len(args) == 0 {
		return 0, errors.New("usage: sandbox [--dir DIR] [--keep-file FILE] COMMAND [ARG…]")
	}
	if os.Geteuid() != 0 {
		return 0, errors.New("needs root: namespaces, mounts, cgroups and a bridge network are made for the node; run it as root")
	}
	return runOutside(args, *keepFile, *dir)
}

// runOutside starts the init of the sandbox in new namespaces, waits for it and removes the cgroups that are left.
func runOutside(args []string, keepFile, dir string) (int, error) {
	leaveCgroups, removeCgroups, err := enterCgroups("tranche-" + strconv.Itoa(os.Getpid()))
	if err != nil {
		return 0, fmt.Errorf("make a cgroup for the sandbox: %w", err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{initRole}, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"=1", keepDirEnv+"="+dir, "TMPDIR="+tempDir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		Pdeathsig:  unix.SIGKILL,
	}
	// Pdeathsig goes off when the thread that started the child ends, so that thread must stay this one.
	lockThread()
	// The init gets the signals that end a program from us, and what it runs from the init.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	err = cmd.Start()
	if leaveErr := leaveCgroups(); err != nil || leaveErr != nil {
		return 0, fmt.Errorf("start in new namespaces: %w", errors.Join(err, leaveErr, removeCgroups()))
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	if keepFile != "" {
		if err := os.WriteFile(keepFile, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return 0, fmt.Errorf("keep file: %w", err)
		}
		defer os.Remove(keepFile)
	}
	err = cmd.Wait()
	return exitCode(err), removeCgroups()
}

// exitCode is the shell's view of how a child ended: its own code, or 128 and the signal.
func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			return 128 + int(st.Signal())
		}
		return exit.ExitCode()
	}
	return 125
}
