package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"
)

// Streams connects a container's stdout and stderr with the named pipes that Nomad reads, and its stdin with the pipe at
// stdin; empty for none. Only paths are passed: the shim opens them, so that logs continue when this plugin dies. discard
// drops what the container writes.
func Streams(cfg *drivers.TaskConfig, stdin string, tty, discard bool) cio.Creator {
	config := cio.Config{Stdin: stdin, Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath, Terminal: tty}
	if discard || noPipe(config.Stdout) && noPipe(config.Stderr) {
		// Without any path the shim copies nothing; but then it gives neither stdin nor a terminal.
		config.Stdout, config.Stderr = "", ""
		if stdin != "" || config.Terminal {
			config.Stdout, config.Stderr = os.DevNull, os.DevNull
		}
	}
	if config.Terminal {
		// What a terminal shows is one stream.
		config.Stderr = ""
	}
	return func(string) (cio.IO, error) { return shimIO(config), nil }
}

// Pin returns the streams with other paths for Nomad's pipes, which lead to the same pipes until close is called, whatever a task
// puts in their place: the shim writes, as root, to what it finds there.
func Pin(streams cio.Creator) (pinned cio.Creator, closePipes func(), err error) {
	var files []*os.File
	closePipes = func() {
		for _, file := range files {
			_ = file.Close()
		}
	}
	io, err := streams("")
	if err != nil {
		return nil, nil, err
	}
	config := io.Config()
	for _, path := range []*string{&config.Stdout, &config.Stderr} {
		if noPipe(*path) {
			continue
		}
		file, err := findPipe(*path)
		if err != nil {
			closePipes()
			return nil, nil, err
		}
		files = append(files, file)
		*path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
	}
	return func(string) (cio.IO, error) { return shimIO(config), nil }, closePipes, nil
}

// findPipe returns the pipe at a path, to be opened by its descriptor. Tasks may write to the directory that it is in, and to the
// one above that, so neither of the two is a link.
func findPipe(path string) (*os.File, error) {
	above := filepath.Dir(filepath.Dir(path))
	name, err := filepath.Rel(above, path)
	if err != nil {
		return nil, err
	}
	dir, err := unix.Open(above, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: above, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err == nil && info.Mode().Type() != os.ModeNamedPipe {
		err = fmt.Errorf("%s is not the named pipe that Nomad made", path)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// openPipe opens the pipe at a path without waiting for its other end.
func openPipe(path string, access int) (fd int, err error) {
	file, err := findPipe(path)
	if err != nil {
		return -1, err
	}
	defer file.Close()
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), access|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// noPipe reports whether Nomad collects no logs of a stream.
func noPipe(path string) bool { return path == "" || path == os.DevNull }

// KeepLogsOpen holds the writing ends of Nomad's pipes open until the function it returns is called. Nomad reads them until
// the last writer closes them, and does not begin again for a second attempt at the same start: the shim of a container that
// an earlier attempt left must not be the last writer when it ends. Nor must this plugin be, which may die during a start:
// it holds the pipes only while such a shim ends.
//
// A task with a terminal writes nothing to stderr. There Nomad waits for a first writer; one that opens and closes the pipe
// would end the task's logs.
func KeepLogsOpen(cfg *drivers.TaskConfig, tty bool) (release func()) {
	paths := []string{cfg.StdoutPath}
	if !tty {
		paths = append(paths, cfg.StderrPath)
	}
	return keepOpen(paths)
}

func keepOpen(paths []string) (release func()) {
	var held []int
	for _, path := range paths {
		// Without a reader, opening fails, and there is nothing to keep.
		if fd, err := openPipe(path, unix.O_WRONLY); err == nil {
			held = append(held, fd)
		}
	}
	return func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}
}

// logPatience is how long a shim may take to connect a task's logs before AwaitLogReaders checks whether they are read.
const logPatience = 5 * time.Second

// ErrLogsUnread is the error of a start whose logs nobody reads.
var ErrLogsUnread = errors.New("nobody reads the task's logs: Nomad's log process for it has ended; it begins to read " +
	"again when the task is restarted")

// AwaitLogReaders keeps the creation of a task from blocking on unread logs: the shim waits for a reader of the task's pipes,
// and cannot be ended meanwhile. After logPatience, pipes without a reader are opened here, so that the creation ends and can
// be undone. Those with a reader are held open, since it would take the end of the only writer for the end of the logs. The
// function that it returns is to be called after the creation, and returns ErrLogsUnread if a pipe had no reader.
func AwaitLogReaders(streams cio.Creator) (created func() error) {
	var paths []string
	if io, err := streams(""); err == nil {
		paths = []string{io.Config().Stdout, io.Config().Stderr}
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			result <- nil
			return
		case <-time.After(logPatience):
		}
		defer keepOpen(paths)()
		var err error
		for _, path := range paths {
			if !isUnread(path) {
				continue
			}
			err = ErrLogsUnread
			if fd, openErr := openPipe(path, unix.O_RDONLY); openErr == nil {
				defer unix.Close(fd)
			}
		}
		<-ctx.Done()
		result <- err
	}()
	return func() error {
		cancel()
		return <-result
	}
}

// isUnread reports whether the path is a pipe that nobody has open for reading.
func isUnread(path string) bool {
	fd, err := openPipe(path, unix.O_WRONLY)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.ENXIO)
}

// EndStderr ends Nomad's wait for a first writer of the task's stderr.
func EndStderr(cfg *drivers.TaskConfig) {
	if fd, err := openPipe(cfg.StderrPath, unix.O_WRONLY); err == nil {
		_ = unix.Close(fd)
	}
}

// shimIO is output that the shim carries by itself. There is nothing here to wait for or to close.
type shimIO cio.Config

func (s shimIO) Config() cio.Config { return cio.Config(s) }
func (shimIO) Cancel()              {}
func (shimIO) Wait()                {}
func (shimIO) Close() error         { return nil }
