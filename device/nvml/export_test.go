package nvml

import "time"

// Hurry has a library begin sessions again without the pauses of a real one.
func Hurry(l *Library) {
	now := time.Now()
	l.now = func() time.Time {
		now = now.Add(restartInterval)
		return now
	}
}

// WaitGrace is how long a session takes to end where NVML waits forever.
const WaitGrace = waitGrace
