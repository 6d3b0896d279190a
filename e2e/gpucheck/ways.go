package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// stepPatience bounds a step of a probe.
const stepPatience = 45 * time.Second

// way is one way to allocate, as the probe knows it.
type way struct {
	Name, Title string
	Smallest    uint64
	lookup      string // how the probe looks the functions up: "" is dlsym
}

func (w way) title() string {
	switch w.lookup {
	case "":
		return w.Title
	case "address":
		return w.Title + ", found with cuGetProcAddress"
	case "address_v2":
		return w.Title + ", found with cuGetProcAddress_v2"
	default:
		return w.Title + ", found with cuGetProcAddress_v2 for per-thread streams"
	}
}

// checkWays fills the limit by every way there is.
func (c *checker) checkWays(ctx context.Context) {
	ways, err := c.listWays(ctx)
	if err != nil {
		c.note("the list of ways", failed, err.Error())
		return
	}
	for _, w := range ways {
		if ctx.Err() != nil {
			c.note(w.title(), notPossible, "there was no time left, or somebody stopped the run")
			continue
		}
		f, err := c.fill(ctx, w)
		if err != nil {
			c.broken(w.title(), err)
			continue
		}
		failures, figures := f.judge()
		c.conclude(w.title(), failures, figures)
		c.report.addFill(w.title(), f)
	}
}

func (c *checker) listWays(ctx context.Context) ([]way, error) {
	out, err := c.output(ctx, stepPatience, c.bareEnv(), c.program("probe"), "ways")
	if err != nil {
		return nil, err
	}
	var ways []way
	for line := range strings.Lines(out) {
		var w way
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			return nil, err
		}
		ways = append(ways, w)
	}
	for _, w := range ways {
		switch w.Name {
		case "linear":
			for _, lookup := range []string{"address", "address_v2", "per_thread"} {
				w.lookup = lookup
				ways = append(ways, w)
			}
		case "async", "array", "vmm":
			w.lookup = "per_thread"
			ways = append(ways, w)
		}
	}
	return ways, nil
}

// fillLimit is the limit under which a way is tried, and the piece that is taken at a time.
func (c *checker) fillLimit(w way) (limit, piece uint64) {
	m := &c.machine
	switch {
	case w.Name == "managed":
		// It lies in host memory too: not much of it, and far less than the card has free.
		limit = min(m.limitBytes, m.contextBytes+512*mib)
	case w.Name == "context":
		limit = min(m.limitBytes, 4*m.contextBytes+64*mib)
		return limit, m.contextBytes
	case w.Name == "green-context":
		// What one costs is not known before it is made, so there has to be room for as much as a context costs.
		return min(m.limitBytes, 3*m.contextBytes), 16 * mib
	case w.Smallest < granularity:
		return min(m.limitBytes, m.contextBytes+64*mib), w.Smallest
	default:
		limit = m.limitBytes
	}
	return limit, (limit - m.contextBytes) / 14 / granularity * granularity
}

// filling is what was seen while a way was tried.
type filling struct {
	way                           way
	limit, contextBytes           uint64
	piece, full                   event
	again, freed                  event
	atEmpty, atOne, atFull, atEnd reading
	atClosed                      reading
	countedWhenDead               uint64
	deviceWhenDead                int64
}

func (c *checker) fill(ctx context.Context, w way) (*filling, error) {
	f := &filling{way: w, contextBytes: c.machine.contextBytes}
	var piece uint64
	f.limit, piece = c.fillLimit(w)
	l, err := c.newClaim(f.limit)
	if err != nil {
		return nil, err
	}
	m, err := c.newMeter(l)
	if err != nil {
		return nil, err
	}
	// Not more than this is ever taken, should the limit not hold.
	most := f.limit + max(f.limit/8, 2*piece)
	args := []string{"fill", w.Name, fmt.Sprint(piece), fmt.Sprint(most)}
	if w.lookup != "" {
		args = append([]string{"--lookup", w.lookup}, args...)
	}
	p, err := c.start(l.env, c.program("probe"), args...)
	if err != nil {
		return nil, err
	}
	defer p.kill()
	for _, s := range []struct {
		step    string
		event   *event
		reading *reading
	}{
		{"empty", new(event), &f.atEmpty}, {"one", &f.piece, &f.atOne}, {"full", &f.full, &f.atFull},
		{"again", &f.again, new(reading)}, {"freed", &f.freed, &f.atEnd}, {"closed", new(event), &f.atClosed},
	} {
		if *s.event, err = p.expect(ctx, stepPatience, s.step); err != nil {
			return nil, fmt.Errorf("waiting for the step %q: %w", s.step, err)
		}
		if *s.reading, err = m.read(p.pid()); err != nil {
			return nil, err
		}
		p.tell("go")
	}
	p.waitEnded()
	dead, err := m.read()
	if err != nil {
		return nil, err
	}
	f.countedWhenDead, f.deviceWhenDead = dead.counted, dead.device
	return f, nil
}

// unitless are ways that take what they take, however much was asked for.
func (f *filling) unitless() bool { return f.way.Smallest == 0 }

// slack is how much of the limit may stay unused when nothing more is given.
func (f *filling) slack() uint64 {
	switch {
	case f.unitless():
		return f.contextBytes + 2*granularity
	case strings.HasPrefix(f.way.Name, "async"), f.way.Name == "pool":
		return 2*32*mib + 2*granularity // a pool grows by 32 MiB, and leaves as much
	case strings.HasPrefix(f.way.Name, "graph"):
		return 32*mib + 2*granularity // graphs' memory grows by so much
	default:
		return max(2*f.way.Smallest, 2*granularity)
	}
}

// physicalFull is what is physically taken when nothing more is given. Managed memory and memory that processes can share
// need not show in what NVML says of one process: there the growth of the whole GPU's has to do.
func (f *filling) physicalFull() uint64 {
	physical := f.atFull.physical()
	switch f.way.Name {
	case "managed", "vmm-imported", "multicast":
		physical = max(physical, f.atEmpty.physical()+uint64(max(f.atFull.device-f.atEmpty.device, 0)))
	}
	return physical
}

// judge says what went wrong, and the figures.
func (f *filling) judge() (failures []string, figures string) {
	fail := func(format string, args ...any) { failures = append(failures, fmt.Sprintf(format, args...)) }
	limit, physical := f.limit, f.physicalFull()
	if f.piece.Result != 0 {
		fail("the first piece was refused: %s", f.piece.Name)
		return failures, f.atOne.String()
	}
	if physical > limit {
		fail("%s are physically taken, which is over the limit of %s", size(physical), size(limit))
	}
	capped := f.full.Result == 0
	switch {
	case capped && f.unitless() && physical <= limit:
		figures = "never refused, and never over the limit; "
	case capped:
		fail("%s were taken and nothing was refused under a limit of %s", size(f.full.Taken), size(limit))
	case f.full.Result != outOfMemory:
		fail("the refusal was %s (%d), not CUDA_ERROR_OUT_OF_MEMORY", f.full.Name, f.full.Result)
	}
	if unused := delta(limit, f.atFull.counted); !capped && unused > int64(f.slack()) {
		fail("%s of the limit could not be used", size(uint64(unused)))
	}
	if f.again.Result != 0 {
		fail("what was freed could not be had again: %s", f.again.Name)
	}
	if f.freed.Result != 0 {
		fail("freeing: %s", f.freed.Name)
	}
	keeps := delta(f.atEnd.physical(), f.atEmpty.physical())
	if left := delta(f.atEnd.counted, f.atEmpty.counted); left > max(keeps, 0)+granularity {
		fail("%s stay counted after everything was freed", size(uint64(left)))
	}
	if f.countedWhenDead != 0 {
		fail("%s stay counted after the process has ended", size(f.countedWhenDead))
	}
	figures += fmt.Sprintf("limit %s, %d taken; %s", size(limit), f.full.Pieces, f.atFull)
	return failures, figures
}
