package mps

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tranche-gpu/tranche/internal/proc"
)

// process is a control daemon that was started or taken over. Its end is noticed through a pidfd, so that it need not be a
// child.
type process struct {
	pid  int
	file *os.File
	kind
	// log is the file with its output.
	log string
	// ended is closed when the process has ended, and stopped when the wait for it has ended.
	ended, stopped chan struct{}
	status         string
}

// follow begins to wait for a process. The caller checks afterwards that the process ID is not another's.
func follow(pid int, id identity, log string) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // not by its identity: it may be a child that has ended
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p := &process{
		pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), kind: id.kind, log: log,
		ended: make(chan struct{}), stopped: make(chan struct{}),
	}
	go p.run()
	return p, nil
}

// run waits until the process has ended or leave is called.
func (p *process) run() {
	defer close(p.stopped)
	if proc.WaitFor(p.file) != nil {
		return // left
	}
	p.status = reap(p.pid)
	close(p.ended)
}

// reap returns how a child has ended. It is unknown for processes that are no children.
func reap(pid int) string {
	var status syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); err != nil || got != pid {
		return "with an unknown status"
	}
	if status.Signaled() {
		return "by signal " + fmt.Sprintf("%d (%s)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("with status %d", status.ExitStatus())
}

// wait waits for the end of the process, and returns false if the context ends first.
func (p *process) wait(ctx context.Context) bool {
	select {
	case <-p.ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave stops waiting.
func (p *process) leave() {
	p.file.Close()
	<-p.stopped
}

// exit returns how the process ended. The text is the same each time that the same happens.
func (p *process) exit() string {
	return "it ended " + p.status + " (its output is in " + p.log + ")"
}

// tail returns the end of a text file, in one line.
func tail(path string) string {
	const enough = 400
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, enough)
	n, _ := file.ReadAt(text, max(0, info.Size()-enough))
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(text[:n]), "")), " ")
}
