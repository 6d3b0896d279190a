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

// process is a control daemon that was started or taken over. Its end is seen through a descriptor, whoever its parent is.
type process struct {
	pid  int
	file *os.File
	// oneUser is whether it serves one user at a time.
	oneUser bool
	// log is where its output goes.
	log string
	// ended is closed when the process has ended, and stopped when nobody waits for it any more.
	ended, stopped chan struct{}
	status         string
}

// follow begins to wait for a process. The caller makes sure that the ID is its own.
func follow(pid int, id identity, log string) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // not by its identity: it may be a child that has ended
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p := &process{
		pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), oneUser: id.OneUser, log: log,
		ended: make(chan struct{}), stopped: make(chan struct{}),
	}
	go p.run()
	return p, nil
}

// run waits until the process has ended or was left.
func (p *process) run() {
	defer close(p.stopped)
	if proc.WaitFor(p.file) != nil {
		return // left
	}
	p.status = reap(p.pid)
	close(p.ended)
}

// reap takes the status of a child. Of somebody else's there is none.
func reap(pid int) string {
	var status syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); err != nil || got != pid {
		return "how is not known"
	}
	if status.Signaled() {
		return "by signal " + fmt.Sprintf("%d (%s)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("with status %d", status.ExitStatus())
}

// wait is true when the process has ended, and false if the context did first.
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

// exit says how the process ended. It says the same each time that the same happens.
func (p *process) exit() string {
	return "it ended " + p.status + " (what it printed is in " + p.log + ")"
}

// tail is the end of a text file, in one line.
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
