package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
	"github.com/tranche-gpu/tranche/internal/proc/proctest"
)

// TestMain lets the test binary stand in for the daemon's programs, under whose names the tests copy it.
func TestMain(m *testing.M) {
	ChildMain()
	switch filepath.Base(os.Args[0]) {
	case controlProgram:
		if slices.Contains(os.Args, "-p") {
			fail("what is -p?")
		}
		if len(os.Args) > 1 {
			fakeDaemon()
		}
		fakeClient()
	case "nvidia-cuda-mps-server":
		unblock := make(chan os.Signal, 1)
		signal.Notify(unblock, unix.SIGTERM)
		<-unblock
		proctest.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeManners is what a fake daemon does otherwise than a good one. It is beside the program.
type fakeManners struct {
	OneUser bool // knows of one user only
	Broken  bool // ends at once
	Mute    bool // never listens
	Stays   bool // does not quit
	Clients string
}

func readManners() fakeManners {
	var manners fakeManners
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), "manners"))
	_ = json.Unmarshal(text, &manners)
	return manners
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	proctest.Exit(1)
}

// fakeDaemon holds a lock and answers commands, one line each, as the simulated daemon does; it is for what that does not do.
func fakeDaemon() {
	manners, pipe := readManners(), os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if manners.Broken || manners.OneUser && len(os.Args) > 2 {
		fail("what is " + os.Args[len(os.Args)-1] + "?")
	}
	// The descriptor goes to the servers, as that of the real one does.
	lock, err := unix.Open(filepath.Join(pipe, "control_lock"), unix.O_RDWR|unix.O_CREAT, 0o666)
	if err != nil || unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB) != nil {
		fail("An instance of this daemon is already running")
	}
	fmt.Printf("args %v\nenv %v\n", os.Args[1:], os.Environ())
	if manners.Mute {
		select {}
	}
	listener, err := listen(filepath.Join(pipe, "control_privileged"))
	if err == nil {
		_, err = listen(filepath.Join(pipe, "control")) // for clients, of which the tests have none
	}
	if err != nil {
		fail(err.Error())
	}
	var server *exec.Cmd
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			fail(err.Error())
		}
		text, _ := io.ReadAll(conn)
		command, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		manners = readManners()
		switch command {
		case "get_server_list":
			if server != nil {
				fmt.Fprintln(conn, server.Process.Pid)
			}
		case "get_client_list":
			fmt.Fprintln(conn, manners.Clients)
		case "start_server":
			server = exec.Command(filepath.Join(filepath.Dir(os.Args[0]), "nvidia-cuda-mps-server"))
			server.ExtraFiles = []*os.File{os.NewFile(uintptr(lock), "lock")}
			if err := server.Start(); err != nil {
				fail(err.Error())
			}
		case "quit":
			if manners.Stays {
				continue
			}
			conn.Close()
			if server != nil {
				_ = server.Process.Kill()
			}
			proctest.Exit(0)
		}
		conn.Close()
	}
}

func listen(socket string) (*net.UnixListener, error) {
	os.Remove(socket)
	return net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
}

// fakeClient tells the daemon what it reads.
func fakeClient() {
	conn, err := net.Dial("unix", filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control_privileged"))
	if err != nil {
		fail("Cannot find MPS control daemon process")
	}
	_, _ = io.Copy(conn, os.Stdin)
	_ = conn.(*net.UnixConn).CloseWrite()
	_, _ = io.Copy(os.Stdout, conn)
	proctest.Exit(0)
}

// fakeRoot is a driver root with the fake programs.
func fakeRoot(t *testing.T, manners fakeManners) string {
	t.Helper()
	root := t.TempDir()
	self, err := os.Executable()
	must.NoError(t, err)
	binary, err := os.ReadFile(self)
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	must.NoError(t, os.MkdirAll(filepath.Join(root, "usr/lib64"), 0o755))
	program := filepath.Join(root, "usr/bin", controlProgram)
	must.NoError(t, os.WriteFile(program, binary, 0o755))
	must.NoError(t, os.Link(program, filepath.Join(root, "usr/bin/nvidia-cuda-mps-server")))
	// Any library will do: nobody loads it.
	must.NoError(t, os.WriteFile(filepath.Join(root, "usr/lib64/libcuda.so.1"), binary[:4096], 0o755))
	behave(t, root, manners)
	return root
}

// behave changes a fake daemon's manners.
func behave(t *testing.T, root string, manners fakeManners) {
	t.Helper()
	text, err := json.Marshal(manners)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(root, "usr/bin/manners"), text, 0o644))
}

// locked reports whether somebody holds the lock of a daemon's directory.
func locked(t *testing.T, d dirs) bool {
	t.Helper()
	fd, err := unix.Open(filepath.Join(d.pipe(), "control_lock"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	defer unix.Close(fd)
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	must.True(t, err == nil || errors.Is(err, unix.EWOULDBLOCK), must.Sprint(err))
	return err != nil
}

func tell(t *testing.T, m *Manager, uuid, command string) string {
	t.Helper()
	daemon, err := m.control(uuid)
	must.NoError(t, err)
	said, err := daemon.run(context.Background(), command)
	must.NoError(t, err)
	return strings.TrimSpace(said)
}

func pidOf(t *testing.T, m *Manager, uuid string) int {
	t.Helper()
	id, err := m.dirs(uuid).readIdentity()
	must.NoError(t, err)
	must.True(t, id.Process.MayLive())
	return id.Process.PID
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	must.NoError(t, err)
	return n
}

// mustHaveEnded fails the test if a process runs. One whose parent has not waited for it yet has ended.
func mustHaveEnded(t *testing.T, pid int) {
	t.Helper()
	id, err := proc.Find(pid)
	must.True(t, err != nil || !id.Lives(), must.Sprintf("process %d runs", pid))
}
