package claim

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Alive tells whether a container's init process lives: the same process, in the same boot. A zombie is dead. Where the
// kernel does not say, the container counts as living, since nothing may be taken from under one that is.
func Alive(c Container) bool {
	return Process{PID: c.InitPID, StartTime: c.InitStartTime, BootID: c.BootID}.Alive()
}

// Process names a process for good, as Container names its init process.
type Process struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
	BootID    string `json:"boot_id"`
}

// ThisProcess is the calling process, also once it has become another program by exec.
func ThisProcess() (Process, error) {
	pid := os.Getpid()
	p, err := statProcess(pid)
	if err != nil {
		return Process{}, fmt.Errorf("looking for this process: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return Process{}, fmt.Errorf("reading the boot ID: %w", err)
	}
	return Process{PID: pid, StartTime: p.startTime, BootID: boot}, nil
}

// Alive tells whether the process lives, as the function Alive does of a container's.
func (p Process) Alive() bool {
	if boot, err := bootID(); err == nil && boot != p.BootID {
		return false
	}
	now, err := statProcess(p.PID)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false
	}
	if err != nil {
		return true
	}
	return now.startTime == p.StartTime && !now.dead()
}

// bootID is the kernel's name for this boot.
var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
})

// process is what /proc/PID/stat says about a process.
type process struct {
	state     byte
	threads   int
	startTime uint64 // clock ticks since boot
}

// dead tells whether nothing of the process runs any more. A process whose first thread has ended shows as a zombie
// while its other threads go on.
func (p process) dead() bool {
	return p.state == 'X' || p.state == 'x' || p.state == 'Z' && p.threads <= 1
}

func statProcess(pid int) (process, error) {
	if pid <= 0 {
		return process{}, fmt.Errorf("process %d: %w", pid, os.ErrNotExist)
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	return parseStat(string(text))
}

// parseStat reads the fields after the command's name, which stands in parentheses and may hold anything, parentheses
// and spaces included; so the fields begin after the last one.
func parseStat(text string) (process, error) {
	_, rest, _ := strings.Cut(text[strings.LastIndexByte(text, ')')+1:], " ")
	fields := strings.Fields(rest)
	const first = 3 // the number of the first field here, as proc(5) counts them
	const state, threads, startTime = 3 - first, 20 - first, 22 - first
	if len(fields) <= startTime {
		return process{}, fmt.Errorf("cannot read the process status %q", text)
	}
	n, err := strconv.Atoi(fields[threads])
	if err != nil {
		return process{}, fmt.Errorf("cannot read the process status %q: %w", text, err)
	}
	start, err := strconv.ParseUint(fields[startTime], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("cannot read the process status %q: %w", text, err)
	}
	return process{state: fields[state][0], threads: n, startTime: start}, nil
}
