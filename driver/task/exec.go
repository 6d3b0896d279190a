package task

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/driver/cgroup"
	"github.com/tranche-gpu/tranche/driver/spec"
)

// execution is a command to run in a task's container.
type execution struct {
	command []string
	tty     bool
	stdin   io.Reader // nil for none
	stdout  io.Writer
	stderr  io.Writer
	resizes <-chan drivers.TerminalSize
}

// Exec runs a command in the task's container and returns its output, or the end of that.
func (h *Handle) Exec(command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	ctx, cancel := context.WithTimeout(h.plugin.Client.Context(), timeout)
	defer cancel()
	var stdout, stderr tail
	result, err := h.exec(ctx, &execution{command: command, stdout: &stdout, stderr: &stderr})
	if err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("%w; it was ended after its timeout of %s", err, timeout)
		}
		return nil, err
	}
	return &drivers.ExecTaskResult{Stdout: stdout.bytes(), Stderr: stderr.bytes(), ExitResult: result}, nil
}

// The exit codes of a shell for a command that cannot be executed, and for one that is not there.
const (
	notExecutable = 126
	notFound      = 127
)

// notStartedError is the error of a runtime that could not execute a command.
type notStartedError struct{ error }

func (e *notStartedError) Unwrap() error { return e.error }

// exitCode returns the exit code of a shell for this error; zero if the command is not the cause. runc and crun report it
// in text only.
func (e *notStartedError) exitCode() int {
	switch text := strings.ToLower(e.Error()); {
	case !strings.Contains(text, "exec"):
		return 0
	case strings.Contains(text, "permission denied"):
		return notExecutable
	case strings.Contains(text, "executable file"), strings.Contains(text, "no such file or directory"):
		return notFound
	}
	return 0
}

// ExecStreaming runs a command in the task's container, connected to the caller's streams. If the container has no such
// command, its stderr says so, as under a shell: Nomad closes a session with an error, of which users see nothing if it is
// longer than the 123 bytes that a WebSocket's last frame takes.
func (h *Handle) ExecStreaming(ctx context.Context, options *drivers.ExecOptions) (*drivers.ExitResult, error) {
	result, err := h.exec(ctx, &execution{
		command: options.Command,
		tty:     options.Tty,
		stdin:   options.Stdin,
		stdout:  options.Stdout,
		stderr:  options.Stderr,
		resizes: options.ResizeCh,
	})
	var notStarted *notStartedError
	if errors.As(err, &notStarted) && notStarted.exitCode() != 0 {
		_, _ = fmt.Fprintln(options.Stderr, err)
		return &drivers.ExitResult{ExitCode: notStarted.exitCode()}, nil
	}
	return result, err
}

// exec runs the command until it or ctx ends, and leaves nothing of it in containerd.
func (h *Handle) exec(ctx context.Context, e *execution) (*drivers.ExitResult, error) {
	if len(e.command) == 0 {
		return nil, errors.New("execute in the task: no command was given")
	}
	if h.Exit() != nil {
		return nil, fmt.Errorf("execute %q in the task: the task has ended", e.command[0])
	}
	ctx = h.plugin.Client.Namespaced(ctx)
	process, startedAs, err := h.newProcess(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("execute %q in the task: %w", e.command[0], err)
	}
	defer h.endProcess(process)
	exits, err := process.Wait(ctx)
	if err == nil {
		if err = process.Start(ctx); err != nil {
			err = &notStartedError{err}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("execute %q in the task: %w", e.command[0], err)
	}
	startedAs(process)
	if err := cgroup.JoinCpuset(h.Config, process.Pid()); err != nil {
		// It has ended already, or runs on the cores that the runtime gave it.
		h.plugin.Logger.Debug("an executed process is not in Nomad's cpuset", "container", h.State.ContainerID, "error", err)
	}

	resizing, stop := context.WithCancel(ctx)
	defer stop()
	go resize(resizing, process, e.resizes)

	status := <-exits
	if err := status.Error(); err != nil {
		return nil, fmt.Errorf("execute %q in the task: %w", e.command[0], err)
	}
	return &drivers.ExitResult{ExitCode: int(status.ExitCode())}, nil
}

// newProcess creates the process, with the environment, user and directory of the task's own. The function that it returns
// is to be called when the process has started: from then on its stdin is closed when the caller's ends, and its output is
// read to the end.
func (h *Handle) newProcess(ctx context.Context, e *execution,
) (containerd.Process, func(containerd.Process), error) {
	container, err := h.plugin.Client.LoadContainer(ctx, h.State.ContainerID)
	if err != nil {
		return nil, nil, err
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	own, err := task.Spec(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := h.plugin.Runtimes.CheckExec(ctx, container, own.Process.User); err != nil {
		return nil, nil, err
	}
	running := make(chan containerd.Process, 1)
	var started atomic.Bool
	opts := []cio.Opt{
		cio.WithStreams(stdinOf(ctx, e, running), e.stdout, e.stderr),
		cio.WithFIFODir(h.plugin.ExecDir),
	}
	if e.tty {
		opts = append(opts, cio.WithTerminal)
	}
	streams := readToEnd(ctx, cio.NewCreator(opts...), &started)
	process, err := task.Exec(ctx, "exec-"+rand.Text(), execSpec(own.Process, e), streams)
	return process, func(p containerd.Process) { started.Store(true); running <- p }, err
}

// stdinOf returns what to copy to the process's stdin; nil for none.
func stdinOf(ctx context.Context, e *execution, started <-chan containerd.Process) io.Reader {
	if e.stdin == nil {
		return nil
	}
	return &closingReader{Reader: e.stdin, atEnd: func() {
		select {
		case process := <-started:
			// The shim holds the pipe open for writing; only this makes the process see the end.
			_ = process.CloseIO(ctx, containerd.WithStdinCloser)
		case <-ctx.Done():
		}
	}}
}

// execSpec is the process of an exec: the task's own with another command.
func execSpec(base *specs.Process, e *execution) *specs.Process {
	process := *base
	process.Args = e.command
	process.Terminal = e.tty
	process.Env = slices.Clone(base.Env)
	if e.tty {
		process.Env = spec.AddTerm(process.Env)
	}
	return &process
}

// endProcess removes the process from containerd, by force if it still runs.
func (h *Handle) endProcess(process containerd.Process) {
	ctx, cancel := h.plugin.Client.Call()
	defer cancel()
	_, err := process.Delete(ctx)
	if errdefs.IsFailedPrecondition(err) {
		_ = process.Kill(ctx, unix.SIGKILL)
		_, err = process.Delete(ctx, containerd.WithProcessKill)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		h.plugin.Logger.Warn("an executed process could not be removed", "container", h.State.ContainerID,
			"process", process.ID(), "error", err)
	}
}

// resize sets the terminal to the sizes of the caller's.
func resize(ctx context.Context, process containerd.Process, sizes <-chan drivers.TerminalSize) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_ = process.Resize(ctx, uint32(size.Width), uint32(size.Height))
		case <-ctx.Done():
			return
		}
	}
}

// closingReader calls atEnd once when there is nothing more to read.
type closingReader struct {
	io.Reader
	atEnd func()
	once  sync.Once
}

func (r *closingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.once.Do(func() { go r.atEnd() })
	}
	return n, err
}
