package wrapper_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/runtime/runtimetest"
)

// withTerminal gives the process of a bundle a terminal.
func (n *node) withTerminal(bundle string) string {
	n.t.Helper()
	file := filepath.Join(bundle, "config.json")
	var spec map[string]any
	must.NoError(n.t, json.Unmarshal([]byte(readFile(n.t, file)), &spec))
	spec["process"].(map[string]any)["terminal"] = true
	spec["mounts"] = append(spec["mounts"].([]any), map[string]any{
		"destination": "/dev/pts", "type": "devpts", "source": "devpts",
		"options": []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"},
	})
	content, err := json.Marshal(spec)
	must.NoError(n.t, err)
	runtimetest.WriteFile(n.t, file, string(content))
	return bundle
}

// receiveTerminal takes the terminal that a runtime sends over the socket of --console-socket.
func receiveTerminal(t *testing.T, listener *net.UnixListener) *os.File {
	t.Helper()
	conn, err := listener.AcceptUnix()
	must.NoError(t, err)
	defer conn.Close()
	name, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, got, _, _, err := conn.ReadMsgUnix(name, control)
	must.NoError(t, err)
	messages, err := unix.ParseSocketControlMessage(control[:got])
	must.NoError(t, err)
	must.Len(t, 1, messages)
	descriptors, err := unix.ParseUnixRights(&messages[0])
	must.NoError(t, err)
	must.Len(t, 1, descriptors)
	return os.NewFile(uintptr(descriptors[0]), "terminal")
}

func TestPassthrough_ConsoleSocket(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			made, env := n.reserve(runtimetest.GPU0, "slice-000")
			bundle := n.withTerminal(n.image(n.bundle("b", `busybox tty; read line; echo "got $line"`, env)))
			socket, err := os.MkdirTemp("/tmp", "console") // the path of a socket is short
			must.NoError(t, err)
			defer os.RemoveAll(socket)
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socket, "s"), Net: "unix"})
			must.NoError(t, err)
			defer listener.Close()

			n.must(n.oci("create", "--bundle", bundle, "--console-socket", filepath.Join(socket, "s"), "c1"))
			defer func() { _ = n.oci("delete", "--force", "c1").Run() }()
			terminal := receiveTerminal(t, listener)
			defer terminal.Close()
			must.Eq(t, "c1", n.holder(made.ID).ID)
			n.must(n.oci("start", "c1"))
			lines := bufio.NewReader(terminal)
			line, err := lines.ReadString('\n')
			must.NoError(t, err)
			must.Eq(t, "/dev/pts/0", strings.TrimSpace(line))
			_, err = io.WriteString(terminal, "a line\n")
			must.NoError(t, err)
			rest, _ := io.ReadAll(lines) // it ends with EIO when the container's side is closed
			must.StrContains(t, string(rest), "got a line")
		})
	}
}

// openTerminal makes a terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must.NoError(t, err)
	fd := int(master.Fd())
	must.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must.NoError(t, err)
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	must.NoError(t, err)
	return master, slave
}

// A container in the foreground has its caller's terminal.
func TestPassthrough_Terminal(t *testing.T) {
	for _, next := range nextRuntimes {
		t.Run(next, func(t *testing.T) {
			n := newContainerNode(t, next)
			_, env := n.reserve(runtimetest.GPU0, "slice-000")
			script := `busybox tty; read line; echo "got $line"; exit 7`
			cmd := n.oci("run", "--bundle", n.withTerminal(n.image(n.bundle("b", script, env))), "c1")
			master, slave := openTerminal(t)
			defer master.Close()
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			must.NoError(t, cmd.Start())
			// Whoever does not get the line waits for it forever: the end of all that the terminal is open in ends the test.
			late := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
			defer late.Stop()
			must.NoError(t, slave.Close())
			_, err := io.WriteString(master, "a line\n")
			must.NoError(t, err)
			output, _ := io.ReadAll(master) // it ends with EIO when nobody has the other side open
			_ = cmd.Wait()
			must.Eq(t, 7, cmd.ProcessState.ExitCode(), must.Sprint(string(output)))
			must.StrContains(t, string(output), "/dev/pts/0")
			must.StrContains(t, string(output), "got a line")
		})
	}
}

// handles reports whether a process has done something about a signal: it catches it, or it blocks and reads it.
func handles(t *testing.T, pid int, signal syscall.Signal) bool {
	var sets uint64
	for line := range strings.Lines(readFile(t, "/proc/"+strconv.Itoa(pid)+"/status")) {
		if name, value, _ := strings.Cut(line, ":"); name == "SigBlk" || name == "SigCgt" {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			must.NoError(t, err)
			sets |= set
		}
	}
	return sets&(1<<(signal-1)) != 0
}

// A signal to the process that was tranche-runtime reaches the container in the foreground, and its exit status comes
// back, also where the container dies by one.
func TestPassthrough_Signals(t *testing.T) {
	for _, next := range nextRuntimes {
		for name, tc := range map[string]struct {
			send func(n *node, runtime *os.Process) error
			want int
		}{
			"to the runtime":   {func(_ *node, runtime *os.Process) error { return runtime.Signal(syscall.SIGTERM) }, 9},
			"to the container": {func(n *node, _ *os.Process) error { return n.oci("kill", "c1", "KILL").Run() }, 137},
		} {
			t.Run(next+" "+name, func(t *testing.T) {
				n := newContainerNode(t, next)
				made, env := n.reserve(runtimetest.GPU0, "slice-000")
				bundle := n.image(n.bundle("b", "trap 'exit 9' TERM; echo ready; while :; do busybox sleep 0.05; done", env))
				cmd := n.oci("run", "--bundle", bundle, "c1")
				stdout, err := cmd.StdoutPipe()
				must.NoError(t, err)
				must.NoError(t, cmd.Start())
				_, err = bufio.NewReader(stdout).ReadString('\n')
				must.NoError(t, err)
				n.waitFor("the runtime passes signals on", func() bool { return handles(t, cmd.Process.Pid, syscall.SIGTERM) })
				must.NoError(t, tc.send(n, cmd.Process))
				var exit *exec.ExitError
				must.True(t, errors.As(cmd.Wait(), &exit))
				must.Eq(t, tc.want, exit.ExitCode())
				must.Nil(t, n.holder(made.ID))
			})
		}
	}
}
