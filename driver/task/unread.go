package task

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// logPeriod is how often WatchLogs looks for logs that nobody reads.
const logPeriod = 5 * time.Second

// WatchLogs drops what tasks write that nobody reads, since their log process has died, until the client is closed. The shim
// holds both ends of their pipes: once these are full, a task would not get an error, but block for good.
func (p *Plugin) WatchLogs(tasks *Store) {
	drained := map[string]*drain{}
	for p.Client.Pause(logPeriod) {
		seen := map[string]bool{}
		for _, h := range tasks.All() {
			for _, pipe := range h.logPipes() {
				seen[pipe] = true
				h.checkRead(pipe, drained)
			}
		}
		for pipe, d := range drained {
			if !seen[pipe] {
				d.end()
				delete(drained, pipe)
			}
		}
	}
	for _, d := range drained {
		d.end()
	}
}

// checkRead begins to drop what comes by a pipe of the task's that is full and has no reader, and ends it where it has one again.
func (h *Handle) checkRead(pipe string, drained map[string]*drain) {
	d := drained[pipe]
	if d == nil && !isFull(pipe) {
		return
	}
	switch read := h.isRead(pipe); {
	case d == nil && !read:
		if d = h.startDrain(pipe); d != nil {
			drained[pipe] = d
			h.plugin.Notify(h.Config, nil, "What the task writes is dropped: %s", ErrLogsUnread)
		}
	case d != nil && read:
		d.end()
		delete(drained, pipe)
		h.plugin.Notify(h.Config, nil, "The task's logs are read again")
	}
}

// logPipes returns the task's pipes for stdout and stderr as its shim has them open, by paths below /proc: a task can put other
// files in the place of Nomad's. There are none where the task or its shim has ended.
func (h *Handle) logPipes() (pipes []string) {
	if h.Exit() != nil || !h.State.ShimProcess.Lives() {
		return nil
	}
	open, _ := filepath.Glob("/proc/" + strconv.Itoa(h.State.ShimProcess.PID) + "/fd/*")
	for _, stream := range []string{h.Config.StdoutPath, h.Config.StderrPath} {
		for _, file := range open {
			if !noPipe(stream) && opens(file, stream) {
				pipes = append(pipes, file)
				break
			}
		}
	}
	return pipes
}

// opens reports whether a file below /proc is a descriptor of the pipe that was made at path.
func opens(file, path string) bool {
	link, err := os.Readlink(file)
	if err != nil || filepath.Base(strings.TrimSuffix(link, " (deleted)")) != filepath.Base(path) {
		return false
	}
	info, err := os.Stat(file)
	return err == nil && info.Mode()&os.ModeNamedPipe != 0
}

// isFull reports whether a write to the pipe would block.
func isFull(pipe string) bool {
	fd, err := unix.Open(pipe, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	writable, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
	return err == nil && writable == 0
}

// isRead reports whether a process other than the shim and this one has the pipe open for reading, or may have.
func (h *Handle) isRead(pipe string) bool {
	want, err := os.Stat(pipe)
	if err != nil {
		return true
	}
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range open {
		parts := strings.Split(file, "/") // "", "proc", PID, "fd", number
		pid, _ := strconv.Atoi(parts[2])
		if pid == os.Getpid() || pid == h.State.ShimProcess.PID || !opens(file, h.Config.StdoutPath) && !opens(file, h.Config.StderrPath) {
			continue
		}
		got, err := os.Stat(file)
		if err == nil && os.SameFile(want, got) && isForReading(parts[2], parts[4]) {
			return true
		}
	}
	return err != nil
}

// isForReading reports whether a process has one of its descriptors open for reading.
func isForReading(pid, fd string) bool {
	info, err := os.ReadFile(filepath.Join("/proc", pid, "fdinfo", fd))
	_, flags, ok := strings.Cut(string(info), "flags:")
	if err != nil || !ok {
		return false
	}
	number, err := strconv.ParseInt(strings.Fields(flags)[0], 8, 64)
	return err == nil && number&unix.O_ACCMODE != unix.O_WRONLY
}

// drain drops what comes by a pipe until it is ended, or the task is: its next run has the same pipe.
type drain struct{ stop, stopped chan struct{} }

// startDrain returns nil if the pipe cannot be opened: its shim has ended.
func (h *Handle) startDrain(pipe string) *drain {
	// It is open for writing too, and so has no end.
	file, err := os.OpenFile(pipe, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	d := &drain{stop: make(chan struct{}), stopped: make(chan struct{})}
	go func() {
		select {
		case <-d.stop:
		case <-h.ended:
		}
		_ = file.Close()
	}()
	go func() {
		defer close(d.stopped)
		_, _ = io.Copy(io.Discard, file)
	}()
	return d
}

// end returns when nothing more is dropped.
func (d *drain) end() {
	close(d.stop)
	<-d.stopped
}
