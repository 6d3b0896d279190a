package main

import (
	"fmt"
	"time"
)

// reading is what was seen at one step of a check: what the shadow libraries count, and what is physically taken.
type reading struct {
	counted uint64
	// process is what NVML says the processes hold, 0 if it does not say; device is the change of the whole GPU's used
	// memory since the check began, in which everybody else's doings show as well.
	process uint64
	device  int64
}

// physical is the truth as far as it can be known.
func (r reading) physical() uint64 {
	if r.process > 0 {
		return r.process
	}
	return uint64(max(r.device, 0))
}

func (r reading) String() string {
	return fmt.Sprintf("counted %s, physically %s", size(r.counted), size(r.physical()))
}

// meter takes readings during one check.
type meter struct {
	watcher *watcher
	claim   *claim // nil: nothing is counted
	before  uint64 // used of the whole GPU when the check began
}

func (c *checker) newMeter(l *claim) (*meter, error) {
	used, err := c.settledBytes()
	return &meter{c.watcher, l, used}, err
}

// settledBytes is what is used of the whole GPU once that has stopped changing: what the processes of an earlier check
// held is not given back the moment they die. Where others keep it changing, what it is by then.
func (c *checker) settledBytes() (uint64, error) {
	const alike, looks, pause = 3, 40, 25 * time.Millisecond
	var used uint64
	for look, same := 0, 0; look < looks && same < alike; look++ {
		s, err := c.watcher.sample()
		if err != nil {
			return 0, err
		}
		if s.Used == used {
			same++
		} else {
			used, same = s.Used, 1
		}
		time.Sleep(pause)
	}
	return used, nil
}

// read takes one reading. The processes are those whose memory counts.
func (m *meter) read(pids ...int) (reading, error) {
	s, err := m.watcher.sample()
	if err != nil {
		return reading{}, err
	}
	r := reading{device: int64(s.Used) - int64(m.before)}
	r.process, _ = s.bytesOf(pids...)
	if m.claim != nil {
		if r.counted, err = m.claim.countedBytes(); err != nil {
			return reading{}, err
		}
	}
	return r, nil
}

// delta is what came to a reading since an earlier one.
func delta(now, earlier uint64) int64 { return int64(now) - int64(earlier) }
