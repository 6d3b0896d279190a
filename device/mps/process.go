package mps

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
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
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
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
	conn, err := p.file.SyscallConn()
	if err == nil {
		err = conn.Read(hasEnded)
	}
	if err != nil {
		return // left
	}
	p.status = reap(p.pid)
	close(p.ended)
}

// hasEnded tells whether the process of a descriptor has ended.
func hasEnded(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
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

// signal sends a signal to this very process.
func (p *process) signal(signal unix.Signal) error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	sendErr := error(nil)
	err = conn.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), signal, nil, 0) })
	if err == nil {
		err = sendErr
	}
	return err
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
