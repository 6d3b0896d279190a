package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestParseMoment(t *testing.T) {
	m, err := parseMoment("1234567890123\n")
	must.NoError(t, err)
	must.Eq(t, moment(1234567890123), m)
	must.Eq(t, 1.5, moment(2_500_000).millisecondsSince(1_000_000))
	for _, line := range []string{"", "\n", "12.5\n", "soon\n"} {
		_, err := parseMoment(line)
		must.Error(t, err, must.Sprintf("%q", line))
	}
}

func TestStopwatch(t *testing.T) {
	dir := t.TempDir()
	watch, err := newStopwatch(dir)
	must.NoError(t, err)
	defer watch.close()

	// What the program does, from its side of the pipes.
	times, err := os.OpenFile(filepath.Join(dir, "times"), os.O_WRONLY, 0)
	must.NoError(t, err)
	defer times.Close()
	end, err := os.Open(filepath.Join(dir, "end"))
	must.NoError(t, err)
	defer end.Close()
	_, err = times.WriteString("41\n42\n")
	must.NoError(t, err)

	for _, want := range []moment{41, 42} {
		m, err := watch.next(time.Minute)
		must.NoError(t, err)
		must.Eq(t, want, m)
	}
	_, err = watch.next(time.Millisecond)
	must.True(t, errors.Is(err, os.ErrDeadlineExceeded), must.Sprint(err))
	must.NoError(t, watch.release())
	n, err := end.Read(make([]byte, 8))
	must.NoError(t, err)
	must.Eq(t, 1, n)
}

func TestNow_GoesOnWithTheClock(t *testing.T) {
	before := now()
	time.Sleep(2 * time.Millisecond)
	must.Greater(t, 1.9, now().millisecondsSince(before))
}
