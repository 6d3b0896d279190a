package page

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tranche-gpu/tranche/agent/text"
	"github.com/tranche-gpu/tranche/agent/timeline"
)

// period is a time of which the GPU page has a time line: how many columns, and of which length.
type period struct {
	Hours   int
	columns int
	Each    time.Duration
}

// periods are those that can be chosen. The first one is shown unless another is.
var periods = []period{{1, 60, time.Minute}, {24, 144, 10 * time.Minute}}

// lanes is how many claims a time line shows.
const lanes = 30

// timelineDetails is the time line of a GPU: a lane for itself and one for each claim.
type timelineDetails struct {
	period
	UUID   string
	Others []period
	Lanes  []lane
	// Left is how many claims are not shown.
	Left int
	// From, Middle and Until are the times of the axis.
	From, Middle, Until string
}

// lane is a line of the time line, in columns of one unit and 100 units high.
type lane struct {
	// ID is the claim's, which may have no page any more; both are empty for the GPU.
	ID, Name string
	HasPage  bool
	Columns  int
	// Seen and Busy are paths: when it was there, and how busy it was.
	Seen, Busy string
	// Held is when it was seen, and Mean how busy it was on average.
	Held, Mean string
}

// timelineOf returns the time line of a GPU; nil if there is none.
func (p *Pages) timelineOf(v *view, uuid string, hours string) *timelineDetails {
	if p.Timeline == nil {
		return nil
	}
	d := &timelineDetails{period: periods[0], UUID: uuid}
	for _, other := range periods {
		if strconv.Itoa(other.Hours) == hours {
			d.period = other
		}
	}
	for _, other := range periods {
		if other != d.period {
			d.Others = append(d.Others, other)
		}
	}
	start := timeline.Start(v.Time, d.columns, d.Each)
	d.From, d.Middle = clock(start), clock(start.Add(time.Duration(d.columns/2)*d.Each))
	d.Until = clock(v.Time)
	gpu, claims := p.Timeline.Of(uuid, v.Time, d.columns, d.Each)
	d.Left = max(0, len(claims)-lanes)
	d.Lanes = append(d.Lanes, d.lane(gpu, start, v.Time))
	for _, l := range claims[:len(claims)-d.Left] {
		d.Lanes = append(d.Lanes, d.lane(l, start, v.Time))
	}
	for i := range d.Lanes {
		d.Lanes[i].HasPage = v.claim(d.Lanes[i].ID) != nil
	}
	return d
}

func clock(at time.Time) string { return at.UTC().Format("15:04") }

func (d *timelineDetails) lane(l timeline.Line, start, now time.Time) lane {
	shown := lane{ID: l.ID, Name: l.Name, Columns: d.columns, Held: text.Unknown}
	var seen, busy path
	first, last, measured, sum := -1, 0, 0, 0.0
	for i, c := range l.Columns {
		if c.Seen {
			if first < 0 {
				first = i
			}
			last = i
			seen.add(i, 100)
		}
		if c.Utilization != nil {
			busy.add(i, max(6, int(math.Round(100**c.Utilization)))) // what is known to be 0 is a line
			measured, sum = measured+1, sum+*c.Utilization
		}
	}
	seen.close()
	busy.close()
	shown.Seen, shown.Busy = seen.String(), busy.String()
	if first >= 0 {
		until := start.Add(time.Duration(last+1) * d.Each)
		if until.After(now) {
			until = now
		}
		shown.Held = clock(start.Add(time.Duration(first)*d.Each)) + " to " + clock(until)
	}
	var mean *float64
	if measured > 0 {
		sum /= float64(measured)
		mean = &sum
	}
	shown.Mean = text.Ratio(mean)
	return shown
}

// path is the data of an SVG path of bars that stand on a line 100 units below the top.
type path struct {
	strings.Builder
	end int // of the last bar
}

// add adds a bar of one column.
func (p *path) add(column, height int) {
	if p.Len() == 0 || column != p.end {
		p.close()
		fmt.Fprintf(p, "M%d 100", column)
	}
	fmt.Fprintf(p, "V%dH%d", 100-height, column+1)
	p.end = column + 1
}

// close closes the shape of bars that touch each other.
func (p *path) close() {
	if p.Len() > 0 {
		p.WriteString("V100z")
	}
}
