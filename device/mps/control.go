package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/runtime/gpuinfo/driverroot"
)

// controlProgram is both the daemon and the program that sends it commands.
const controlProgram = "nvidia-cuda-mps-control"

// control sends commands to the daemon of a GPU.
type control struct {
	uuid, program string
	// env is the whole environment of the daemon and the program.
	env []string
	// timeout bounds one command.
	timeout time.Duration
	// v3 is whether the daemon has the commands of MPS v3.
	v3 bool
}

// FindProgram finds the control daemon's program in a driver root.
func FindProgram(driverRoot string) (string, error) {
	return driverroot.FindProgram(driverRoot, controlProgram)
}

// control finds the daemon's program, and the driver's library for it.
func (m *Manager) control(uuid string) (*control, error) {
	program, err := FindProgram(m.options.DriverRoot)
	if err != nil {
		return nil, err
	}
	library, err := driverroot.FindLibrary(m.options.DriverRoot, driverroot.CUDALibrary)
	if err != nil {
		return nil, err
	}
	d := m.dirs(uuid)
	if err := link(library, filepath.Join(d.library(), driverroot.CUDALibrary)); err != nil {
		return nil, err
	}
	id, err := d.readIdentity()
	if err != nil {
		return nil, err
	}
	return &control{uuid: uuid, program: program, timeout: m.timing.answer, v3: id.V3, env: []string{
		"PATH=" + filepath.Dir(program) + ":/usr/bin:/bin",
		// The directory with the link is for driver roots in which links lead elsewhere than on the host.
		"LD_LIBRARY_PATH=" + d.library() + ":" + filepath.Dir(library),
		"CUDA_MPS_PIPE_DIRECTORY=" + d.pipe(),
		"CUDA_MPS_LOG_DIRECTORY=" + d.log(),
	}}, nil
}

// link creates a symbolic link, and replaces what exists there.
func link(target, at string) error {
	if now, err := os.Readlink(at); err == nil && now == target {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(at), 0o755)
	if err == nil {
		_ = os.Remove(at)
		err = os.Symlink(target, at)
	}
	if err != nil {
		return fmt.Errorf("link to the driver's library for an MPS control daemon: %w", err)
	}
	return nil
}

// run has the daemon run a command, and returns the output. Commands are arguments in MPS v3, and input before.
func (c *control) run(ctx context.Context, command string) (string, error) {
	if c.v3 {
		return c.exec(ctx, command, nil, strings.Fields(command)...)
	}
	return c.exec(ctx, command, strings.NewReader(command+"\n"))
}

// exec runs the program; the command is for errors.
func (c *control) exec(ctx context.Context, command string, input io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var output bytes.Buffer
	program := exec.CommandContext(ctx, c.program, args...)
	program.Env = c.env
	program.Dir = "/"
	program.Stdin = input
	program.Stdout, program.Stderr = &output, &output
	program.WaitDelay = time.Second
	if err := program.Run(); err != nil {
		return "", fmt.Errorf("send %q to the MPS control daemon of GPU %s: %w: %s", command, c.uuid,
			errors.Join(err, ctx.Err()), strings.Join(strings.Fields(output.String()), " "))
	}
	return output.String(), nil
}

func (c *control) answers(ctx context.Context) error {
	_, err := c.servers(ctx)
	return err
}

// servers returns the process IDs of the daemon's servers.
func (c *control) servers(ctx context.Context) ([]int, error) {
	if c.v3 {
		return c.readyServers(ctx)
	}
	text, err := c.run(ctx, "get_server_list")
	return numbers(text), err
}

// startServer has the daemon start a server, and returns what it says.
func (c *control) startServer(ctx context.Context) (string, error) {
	if c.v3 {
		return c.createServer(ctx), nil
	}
	return c.run(ctx, "start_server -uid "+strconv.Itoa(os.Geteuid()))
}

// quit has the daemon end.
func (c *control) quit(ctx context.Context) error {
	command := "quit -t 3"
	if c.v3 {
		command = "-q"
	}
	_, err := c.run(ctx, command)
	return err
}

// clients returns the process IDs of the clients of the daemon's servers.
func (c *control) clients(ctx context.Context) ([]int, error) {
	servers, err := c.servers(ctx)
	if err != nil {
		return nil, err
	}
	if c.v3 && len(servers) > 0 {
		return c.namespaceClients(ctx)
	}
	var clients []int
	for _, server := range servers {
		text, err := c.run(ctx, "get_client_list "+strconv.Itoa(server))
		if err != nil {
			return nil, err
		}
		clients = append(clients, numbers(text)...)
	}
	return clients, nil
}

// numbers returns the lines that are process IDs.
func numbers(text string) []int {
	var found []int
	for line := range strings.Lines(text) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			found = append(found, pid)
		}
	}
	return found
}
