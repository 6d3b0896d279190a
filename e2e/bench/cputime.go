package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time that a process has taken, its threads that have ended included. It is exact to the
// nanosecond, where /proc/PID/stat counts ticks of ten milliseconds (clock_getcpuclockid(3) and the kernel's
// posix-timers.h say how the clock of a process is named).
func cpuTime(pid int) (time.Duration, error) {
	const processClock = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &t); err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
