package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stopwatch is this side of e2e/programs/stopwatch.c: the two named pipes through which a task tells its times.
type stopwatch struct {
	times, end *os.File
	lines      *bufio.Reader
}

// newStopwatch makes the pipes in dir. They are open at both ends, so that neither side has to wait for the other.
func newStopwatch(dir string) (*stopwatch, error) {
	times, err := openPipe(filepath.Join(dir, "times"))
	if err != nil {
		return nil, err
	}
	end, err := openPipe(filepath.Join(dir, "end"))
	if err != nil {
		times.Close()
		return nil, err
	}
	return &stopwatch{times: times, end: end, lines: bufio.NewReader(times)}, nil
}

func openPipe(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make the named pipe %s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// next waits for the task's next time, at most for timeout.
func (s *stopwatch) next(timeout time.Duration) (moment, error) {
	if err := s.times.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	line, err := s.lines.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("wait for the task to tell its time: %w", err)
	}
	return parseMoment(line)
}

// release lets the task end.
func (s *stopwatch) release() error {
	_, err := s.end.WriteString("\n")
	return err
}

func (s *stopwatch) close() {
	s.times.Close()
	s.end.Close()
}

// moment is a time of CLOCK_MONOTONIC, in nanoseconds. Processes in containers tell the same.
type moment int64

// now reads the clock that the tasks read, too.
func now() moment {
	var t unix.Timespec
	// It fails for clocks that do not exist only.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return moment(t.Nano())
}

// parseMoment reads a line that the program wrote.
func parseMoment(line string) (moment, error) {
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the task tells the time %q: %w", line, err)
	}
	return moment(ns), nil
}

// millisecondsSince is the time from an earlier moment to this one.
func (m moment) millisecondsSince(earlier moment) float64 { return float64(m-earlier) / 1e6 }
