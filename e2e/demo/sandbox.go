package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// With KEEP=1 the inner demo outlives the outer one, so it may not hold the outer one's output open. It tells its story
// on this descriptor instead, and the outer one prints it until the line which says that everything held.
const (
	storyFD  = 3
	heldLine = "all held; the node stays"
)

// startSandbox runs the demo again inside a sandbox and returns when it has ended or, with -keep, when it has shown
// everything and only waits.
func startSandbox(o options) error {
	if err := os.RemoveAll(o.place()); err != nil {
		return fmt.Errorf("remove what an earlier demo left: %w", err)
	}
	if err := os.MkdirAll(o.place("bin"), 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"--dir", filepath.Dir(o.build), "--keep-file", o.place("init.pid"), "--",
		self, "-inside", "-build", o.build, "-nomad", o.nomad}
	if o.keep {
		args = append(args, "-keep")
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	cmd := exec.Command(filepath.Join(o.build, "e2e/sandbox"), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if o.keep {
		pages, err := listenOutside()
		if err != nil {
			return fmt.Errorf("listen for the agent's pages: %w", err)
		}
		defer pages.Close()
		// Neither the end of this process nor its terminal's signals may end what is kept.
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = nil, nil, []*os.File{writer, pages}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the sandbox: %w", err)
	}
	writer.Close()
	if o.keep {
		return listenUntilHeld(o, cmd, reader)
	}
	if err := cmd.Wait(); err != nil {
		return notHeld(o)
	}
	return os.RemoveAll(o.place("bin"))
}

func notHeld(o options) error {
	return errors.New("not everything held; the node's logs are in " + o.place("node"))
}

// listenUntilHeld prints the inner demo's story until it says that everything held, and leaves it running.
func listenUntilHeld(o options, cmd *exec.Cmd, story io.Reader) error {
	held := false
	for lines := bufio.NewScanner(story); !held && lines.Scan(); {
		if held = lines.Text() == heldLine; !held {
			fmt.Println(lines.Text())
		}
	}
	if !held {
		_ = cmd.Wait()
		return notHeld(o)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(o.place("sandbox.pid"), []byte(pid+"\n"), 0o644); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// keptPID is the process ID of a sandbox that was left running, 0 if there is none. The number in the file may have gone
// to another process since, so the executable has to be ours.
func keptPID(o options) int {
	text, err := os.ReadFile(o.place("sandbox.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || strings.TrimSuffix(exe, " (deleted)") != filepath.Join(o.build, "e2e/sandbox") {
		return 0
	}
	return pid
}

func kept(o options) bool { return keptPID(o) != 0 }

// stopKept ends a demo that was left running and waits for its end.
func stopKept(o options) error {
	pid := keptPID(o)
	if pid == 0 {
		fmt.Println("No demo is running.")
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open the sandbox's process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fmt.Errorf("stop the sandbox's process %d: %w", pid, err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for the sandbox's process %d: %w", pid, err)
		}
		break
	}
	fmt.Println("The demo's node is stopped.")
	return errors.Join(os.Remove(o.place("sandbox.pid")), os.RemoveAll(o.place("bin")))
}

// writeCommands writes commands that look at the node from outside its sandbox.
func writeCommands(o options, address string, environment []string) error {
	for name, program := range map[string]string{
		"nomad":   o.nomad,
		"tranche": filepath.Join(o.build, "bin/tranche"),
	} {
		script := "#!/bin/sh\n# Runs " + name + " inside the demo's sandbox.\n" +
			"exec nsenter -t \"$(cat " + quote(o.place("init.pid")) + ")\" -m -n -p -i --wd=\"$PWD\" env NOMAD_ADDR=" + address
		for _, variable := range environment {
			script += " " + quote(variable)
		}
		script += " " + quote(program) + " \"$@\"\n"
		if err := os.WriteFile(o.place("bin", name), []byte(script), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// quote makes one word of a shell command.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
