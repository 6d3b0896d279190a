package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"
)

func event(number int64) Event {
	return Event{Kind: Bind, At: number, Claim: fmt.Sprintf("%08x", number), Was: Reserved, Terms: Terms{GPU: "GPU-1", Slices: 1}}
}

func add(t *testing.T, j *Journal, numbers ...int64) {
	t.Helper()
	for _, number := range numbers {
		must.NoError(t, j.Append(event(number)))
	}
	j.Close()
}

func end(t *testing.T, j *Journal) Position {
	t.Helper()
	p, err := j.End()
	must.NoError(t, err)
	return p
}

func read(t *testing.T, j *Journal, from, to Position) ([]int64, Loss) {
	t.Helper()
	var got []int64
	loss, err := j.Read(from, to, func(e Event) error {
		got = append(got, e.At)
		return nil
	})
	must.NoError(t, err)
	return got, loss
}

func newJournal(t *testing.T) *Journal {
	t.Helper()
	return In(filepath.Join(t.TempDir(), "journal"))
}

func numbers(from, to int64) []int64 {
	var all []int64
	for n := from; n < to; n++ {
		all = append(all, n)
	}
	return all
}

// What lies between two positions is read, whole and once.
func TestRead_BetweenPositions(t *testing.T) {
	j := newJournal(t)
	begin := end(t, j)
	must.Eq(t, Position{Segment: 1}, begin)
	got, loss := read(t, j, begin, begin)
	must.SliceEmpty(t, got)
	must.Eq(t, Loss{}, loss)

	add(t, j, 0, 1, 2)
	middle := end(t, j)
	add(t, j, 3, 4)
	got, loss = read(t, j, begin, middle)
	must.Eq(t, numbers(0, 3), got)
	must.Eq(t, Loss{}, loss)
	got, _ = read(t, j, middle, end(t, j))
	must.Eq(t, numbers(3, 5), got)
}

// A line that was cut off at any byte is dropped, and the events before and after it are read.
func TestAppend_AfterATornLine(t *testing.T) {
	whole := newJournal(t)
	add(t, whole, 0)
	size := end(t, whole).Offset
	for cut := int64(1); cut < size; cut++ {
		j := newJournal(t)
		begin := end(t, j)
		add(t, j, 0)
		torn := end(t, j)
		add(t, j, 1)
		must.NoError(t, os.Truncate(j.path(1), torn.Offset+cut))
		if cut%2 == 0 { // a reader may come in between
			middle := end(t, j)
			got, loss := read(t, j, begin, middle)
			must.Eq(t, numbers(0, 1), got)
			must.Eq(t, Loss{}, loss)
			add(t, j, 2)
			got, _ = read(t, j, middle, end(t, j))
			must.Eq(t, []int64{2}, got, must.Sprintf("cut at %d", cut))
			continue
		}
		add(t, j, 2)
		got, loss := read(t, j, begin, end(t, j))
		must.Eq(t, []int64{0, 2}, got, must.Sprintf("cut at %d", cut))
		must.Eq(t, Loss{}, loss, must.Sprintf("cut at %d", cut))
	}
}

func TestRead_DamagedLine(t *testing.T) {
	j := newJournal(t)
	add(t, j, 0, 1, 2)
	text, err := os.ReadFile(j.path(1))
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(j.path(1), []byte(strings.Replace(string(text), `"at":1`, `"at":7`, 1)), 0o600))
	got, loss := read(t, j, Position{Segment: 1}, end(t, j))
	must.Eq(t, []int64{0, 2}, got)
	must.Eq(t, Loss{Damaged: 1}, loss)
}

func TestAppend_StartsSegments(t *testing.T) {
	j := newJournal(t)
	j.segmentBytes = 1000
	add(t, j, 0)
	p := end(t, j)
	add(t, j, numbers(1, 40)...)
	must.Greater(t, 5, end(t, j).Segment)
	got, loss := read(t, j, p, end(t, j))
	must.Eq(t, numbers(1, 40), got)
	must.Eq(t, Loss{}, loss)

	// Collected segments go, and what comes later is still read.
	p = end(t, j)
	must.NoError(t, j.RemoveBefore(p))
	segments, _, err := j.segments()
	must.NoError(t, err)
	must.Eq(t, []int64{p.Segment}, segments)
	add(t, j, 40)
	got, loss = read(t, j, p, end(t, j))
	must.Eq(t, numbers(40, 41), got)
	must.Eq(t, Loss{}, loss)
}

// A journal that nobody collects stays small, and its reader learns that events are missing.
func TestAppend_BoundsTheJournal(t *testing.T) {
	j := newJournal(t)
	j.segmentBytes, j.mostSegments = 1000, 3
	for n := range int64(60) {
		add(t, j, n)
	}
	segments, _, err := j.segments()
	must.NoError(t, err)
	must.Len(t, 3, segments)
	got, loss := read(t, j, Position{Segment: 1}, end(t, j))
	must.Eq(t, numbers(60-int64(len(got)), 60), got)
	must.Eq(t, Loss{Missing: true}, loss)
	must.NoError(t, os.RemoveAll(j.dir))
	_, loss = read(t, j, Position{Segment: 1}, Position{Segment: 9, Offset: 7})
	must.Eq(t, Loss{Missing: true}, loss)
}

func TestAppend_MarksTheGap(t *testing.T) {
	j := newJournal(t)
	add(t, j, 0)
	noJSON := event(1)
	noJSON.Workload = json.RawMessage("{")
	must.Error(t, j.Append(noJSON))
	gap := j.Gap()
	must.NotNil(t, gap)
	add(t, j, 2)
	must.Eq(t, gap, j.Gap())
	must.NoError(t, j.EndGap(gap))
	must.Nil(t, j.Gap())
	must.NoError(t, j.EndGap(gap))
}

// A gap that has grown since it was seen stays.
func TestEndGap_OfAnEarlierTime(t *testing.T) {
	j := newJournal(t)
	add(t, j, 0)
	j.markGap()
	seen := j.Gap()
	grown := func() bool { j.markGap(); return *j.Gap() != *seen } // the kernel's clock for files ticks
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(grown), wait.Timeout(time.Minute), wait.Gap(time.Millisecond)))
	must.NoError(t, j.EndGap(seen))
	must.Eq(t, seen.Since, j.Gap().Since)
}

// What is in the place of a segment is left alone: the next event begins another segment, and the reader learns that events may be
// missing.
func TestAppend_BesideWhatIsNoFile(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"directory":     func(path string) error { return os.MkdirAll(filepath.Join(path, "full"), 0o700) },
		"named pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symbolic link": func(path string) error { return os.Symlink("/etc/passwd", path) },
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal(t)
			add(t, j, 0)
			p := end(t, j)
			must.NoError(t, os.Remove(j.path(1)))
			must.NoError(t, replace(j.path(1)))
			must.Eq(t, Position{Segment: 2}, end(t, j))
			must.NoError(t, j.Sync(end(t, j)))
			got, loss := read(t, j, p, end(t, j))
			must.SliceEmpty(t, got)
			must.Eq(t, Loss{Missing: true}, loss)
			p = end(t, j)
			must.NoError(t, j.RemoveBefore(p))
			add(t, j, 1)
			got, loss = read(t, j, p, end(t, j))
			must.Eq(t, numbers(1, 2), got)
			must.Eq(t, Loss{}, loss)
			must.Nil(t, j.Gap())
		})
	}
}

// A line without an end takes no memory, and costs no other event.
func TestRead_EndlessLine(t *testing.T) {
	j := newJournal(t)
	add(t, j, 0, 1)
	const endless = 1 << 35
	must.NoError(t, os.Truncate(j.path(1), endless))
	f, err := os.OpenFile(j.path(1), os.O_WRONLY, 0)
	must.NoError(t, err)
	line, err := event(2).line()
	must.NoError(t, err)
	_, err = f.WriteAt(append([]byte{'\n'}, line...), 1<<24)
	must.NoError(t, errors.Join(err, f.Close()))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, loss := read(t, j, Position{Segment: 1}, Position{Segment: 1, Offset: 1<<24 + 1000})
	runtime.ReadMemStats(&after)
	must.Eq(t, numbers(0, 3), got)
	must.Eq(t, Loss{Damaged: 1}, loss)
	must.Less(t, 1<<20, after.TotalAlloc-before.TotalAlloc)
	add(t, j, 3)
	must.Eq(t, 2, end(t, j).Segment)
}

func FuzzParseLine(f *testing.F) {
	line, err := event(7).line()
	must.NoError(f, err)
	f.Add(line[:len(line)-1])
	f.Add([]byte("00000000 {}"))
	f.Add([]byte("deadbeef torn"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if e, ok := parseLine(line); ok && e.Claim == "" {
			t.Fatalf("an event without a claim: %q", line)
		}
	})
}
