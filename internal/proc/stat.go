package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stat is the part of /proc/PID/stat (proc_pid_stat(5)) that tells processes apart. It is read here rather than by a library
// because the hooks start with every container, and the library's initialization takes a fifth of their start.
type stat struct {
	state     string
	parent    int
	threads   int
	startTime uint64 // clock ticks since boot
}

// Fields of /proc/PID/stat after the program's name, counted from 0.
const (
	stateField     = 0
	parentField    = 1
	threadsField   = 17
	startTimeField = 19
)

// statOf reads the stat of a process. The error is os.ErrNotExist or unix.ESRCH if there is none.
func statOf(pid int) (stat, error) {
	if pid <= 0 {
		return stat{}, fmt.Errorf("process %d: %w", pid, os.ErrNotExist)
	}
	path := "/proc/" + strconv.Itoa(pid) + "/stat"
	text, err := readProc(path)
	var s stat
	if err == nil {
		s, err = parseStat(text)
	}
	if err != nil {
		return stat{}, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// readProc reads a file of a process. The statistics of a node read hundreds: this takes a third of the system calls that
// os.ReadFile does. The kernel makes the whole text of such a file for one read.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for size := 1 << 10; ; size *= 4 {
		text := make([]byte, size)
		n, err := unix.Pread(fd, text, 0)
		if err != nil || n < size {
			return text[:max(0, n)], err
		}
	}
}

// parseStat parses the content of /proc/PID/stat. The program's name, in parentheses, may contain any character.
func parseStat(text []byte) (stat, error) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= startTimeField {
		return stat{}, fmt.Errorf("it has %d fields after the program's name", len(fields))
	}
	s := stat{state: fields[stateField]}
	var err error
	if s.parent, err = strconv.Atoi(fields[parentField]); err != nil {
		return stat{}, err
	}
	if s.threads, err = strconv.Atoi(fields[threadsField]); err != nil {
		return stat{}, err
	}
	s.startTime, err = strconv.ParseUint(fields[startTimeField], 10, 64)
	return s, err
}

// ended reports whether no thread of a process runs. A process whose first thread has ended shows as a zombie while
// its other threads run.
func (s stat) ended() bool {
	return s.state == "X" || s.state == "x" || s.state == "Z" && s.threads <= 1
}
