package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"

	claims "github.com/tranche-gpu/tranche/claim"
	"github.com/tranche-gpu/tranche/governor"
	"github.com/tranche-gpu/tranche/governor/status"
)

const (
	// kernelUS is how long kernels take, and effortUS those of a best-effort neighbour.
	kernelUS, effortUS = 1000, 200
	// queued is how many launches of a program that always wants the GPU are outstanding.
	queued = 32
	// requestKernels is how many kernels a request has, and requestPauseUS the pause after it.
	requestKernels, requestPauseUS = 10, 10_000
	switchRounds, gateRounds       = 300, 400
	// turnsPatience bounds all checks of compute shares.
	turnsPatience = 2 * time.Minute
)

// bounds are what is asked of shares.
type bounds struct {
	points          float64       // the error of a share
	median, p99     float64       // how many times as long requests of high priority take beside others
	settles, window time.Duration // how long programs have been at it before they are watched, and for how long they are
	tries           int           // how often they are watched at most
}

// bounds are looser for a simulated GPU, whose programs wait for processors, too.
func (m *machine) bounds() bounds {
	if m.simulated {
		return bounds{points: 10, median: 1.6, p99: 100, settles: time.Second / 2, window: 3 * time.Second / 2, tries: 20}
	}
	return bounds{points: 2, median: 1.2, p99: 1.2, settles: 2 * time.Second, window: 10 * time.Second, tries: 1}
}

// turns are the checks of compute shares. Programs count the kernels that have ended, by their own clocks: the governor's books
// judge nothing.
type turns struct {
	*checker
	bounds
	loops int // of a kernel that takes a millisecond
	log   lastBytes
}

// checkTurns runs a governor in this process, and programs of governed claims.
func (c *checker) checkTurns(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, turnsPatience)
	defer cancel()
	t := &turns{checker: c, bounds: c.machine.bounds()}
	stop, err := t.begin(ctx)
	if err != nil {
		c.broken("claims that compute in turns", err)
		return
	}
	defer stop()
	t.say("Compute shares on %s, driver %s, %s.", c.machine.name, c.machine.driver, c.began.UTC().Format(time.DateOnly))
	for _, check := range []struct {
		name string
		run  func(context.Context) (figures string, err error)
	}{
		{"a switch between two processes", t.measureSwitch},
		{"a launch by the driver and by the library", t.measureGates},
		{"two claims at 50:50", func(ctx context.Context) (string, error) { return t.checkShares(ctx, 50) }},
		{"two claims at 30:70", func(ctx context.Context) (string, error) { return t.checkShares(ctx, 30) }},
		{"requests with high priority beside a best-effort claim", t.checkPriority},
	} {
		figures, err := check.run(ctx)
		if err != nil {
			c.broken(check.name, fmt.Errorf("%w%s", err, t.log.said()))
			continue
		}
		c.note(check.name, passed, figures)
	}
	fmt.Fprintf(c.out, "    %s\n", c.report.turnsParagraph())
}

// begin finds out how long kernels take and starts the governor.
func (t *turns) begin(ctx context.Context) (stop func(), err error) {
	calibrated, err := t.ask(ctx, t.bareEnv(), "calibrate")
	if err != nil {
		return nil, err
	}
	t.loops = calibrated.Loops
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- governor.Run(ctx, governor.Options{
			StateDir: filepath.Join(t.work, "state"), RunDir: t.work, Ready: func() { close(ready) },
			Logger: hclog.New(&hclog.LoggerOptions{Output: &t.log, Level: hclog.Warn}),
		})
	}()
	select {
	case <-ready:
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.broken("the governor", err)
			}
		}, nil
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("start the governor: %w", err)
	}
}

// ask runs a probe that says one thing.
func (t *turns) ask(ctx context.Context, env []string, args ...string) (event, error) {
	out, err := t.output(ctx, stepPatience, env, t.program("probe"), args...)
	if err != nil {
		return event{}, err
	}
	events, err := parseEvents(out)
	if err == nil && len(events) != 1 {
		err = fmt.Errorf("the probe says %q", out)
	}
	if err != nil {
		return event{}, err
	}
	return events[0], nil
}

func (t *turns) measureSwitch(ctx context.Context) (string, error) {
	e, err := t.ask(ctx, t.bareEnv(), "switch", strconv.Itoa(switchRounds))
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("%.1f µs, the median of %d", e.Value/1000, switchRounds)
	t.say("A switch between two processes takes %s.", figures)
	return figures, nil
}

// measureGates measures launches by the driver and by the library in turns, in one process: under a claim that is not governed,
// under one that is and is alone, and beside another one.
func (t *turns) measureGates(ctx context.Context) (string, error) {
	ungoverned, err := t.newClaim(t.machine.limitBytes)
	if err != nil {
		return "", err
	}
	governed, err := t.newGoverned(shareOf(50))
	if err != nil {
		return "", err
	}
	gate := func(l *claim) (g gateRow, err error) {
		e, err := t.ask(ctx, l.env, "gate", strconv.Itoa(gateRounds), t.machine.cudaFile)
		return gateRow{driverNS: e.DriverNS, ours: e.Value, same: e.Same}, err
	}
	own, err := gate(ungoverned)
	if err != nil {
		return "", err
	}
	alone, err := gate(governed)
	if err != nil {
		return "", err
	}
	neighbour, err := t.enter(ctx, shareOf(50), 1, 1, 1, 10_000)
	if err != nil {
		return "", err
	}
	defer neighbour.kill()
	inTurn, err := gate(governed)
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("%.0f ns by the driver; the library adds %s for a claim that is not governed, %s for a governed one that is "+
		"alone, and %s in a turn (medians of %d batches that alternate in one process)", own.driverNS, own, alone, inTurn, gateRounds)
	t.say("A launch takes %s.", figures)
	if !own.same {
		return "", errors.New("launches of a claim that is not governed are not the driver's own: " + figures)
	}
	return figures, nil
}

func shareOf(percent int) *claims.Compute {
	return &claims.Compute{Share: percent * claims.WholeCompute / 100, Max: claims.WholeCompute, Class: claims.ClassNormal}
}

// enter starts a program of a governed claim, and waits until it computes in turns.
func (t *turns) enter(ctx context.Context, part *claims.Compute, us, depth, burst, pauseUS int) (*child, error) {
	l, err := t.newGoverned(part)
	if err != nil {
		return nil, err
	}
	args := []string{"work"}
	for _, n := range []int{t.loops, us, depth, burst, pauseUS} {
		args = append(args, strconv.Itoa(n))
	}
	p, err := t.start(l.env, t.program("probe"), args...)
	if err != nil {
		return nil, err
	}
	if _, err = p.expect(ctx, stepPatience, "works"); err == nil {
		err = t.joined(ctx, l.id)
	}
	if err != nil {
		p.kill()
	}
	return p, err
}

// joined waits until a process of a claim has joined.
func (t *turns) joined(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stepPatience)
	defer cancel()
	for {
		s, err := status.Read(t.work)
		if err != nil || s != nil && len(s.Claims[id].Joined) > 0 {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no process of the claim has joined: %w", err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.New("the time was up, or somebody stopped the run")
	case <-time.After(d):
		return nil
	}
}

// watch returns what programs have done in a window, and how many kernels a second.
func (t *turns) watch(ctx context.Context, window time.Duration, programs ...*child) (ends []event, rates []float64, err error) {
	begins := make([]event, len(programs))
	for i, p := range programs {
		if begins[i], err = p.ask(ctx, stepPatience, "now"); err != nil {
			return nil, nil, err
		}
	}
	if err := pause(ctx, window); err != nil {
		return nil, nil, err
	}
	for i, p := range programs {
		e, err := p.ask(ctx, stepPatience, "now")
		if err != nil {
			return nil, nil, err
		}
		ends = append(ends, e)
		rates = append(rates, float64(e.Kernels-begins[i].Kernels)/(float64(e.AtNS-begins[i].AtNS)/1e9))
	}
	return ends, rates, nil
}

// checkShares checks how many kernels each of two claims that always want the GPU completes.
func (t *turns) checkShares(ctx context.Context, percent int) (string, error) {
	one, err := t.enter(ctx, shareOf(percent), kernelUS, queued, 0, 0)
	if err != nil {
		return "", err
	}
	defer one.kill()
	if err := pause(ctx, t.settles); err != nil {
		return "", err
	}
	_, alone, err := t.watch(ctx, t.window/5, one)
	if err != nil {
		return "", err
	}
	other, err := t.enter(ctx, shareOf(100-percent), kernelUS, queued, 0, 0)
	if err != nil {
		return "", err
	}
	defer other.kill()
	if err := pause(ctx, t.settles); err != nil {
		return "", err
	}
	row := shareOfTime{want: float64(percent), window: t.window}
	for range t.tries {
		_, rates, err := t.watch(ctx, t.window, one, other)
		if err != nil {
			return "", err
		}
		row.had, row.lost = 100*rates[0]/(rates[0]+rates[1]), 100*(1-(rates[0]+rates[1])/alone[0])
		if err = row.judge(t.points); err == nil {
			break
		}
	}
	t.say("Of two claims that always want the GPU for kernels of %d µs, one had %v.", kernelUS, row)
	return row.String(), row.judge(t.points)
}

// checkPriority checks how much longer requests take beside a best-effort claim that always wants the GPU.
func (t *turns) checkPriority(ctx context.Context) (string, error) {
	high, effort := shareOf(50), shareOf(50)
	high.Class, effort.Class = claims.ClassHigh, claims.ClassBestEffort
	service, err := t.enter(ctx, high, kernelUS, queued, requestKernels, requestPauseUS)
	if err != nil {
		return "", err
	}
	defer service.kill()
	r := requests{}
	if r.alone, err = t.requests(ctx, service); err != nil {
		return "", err
	}
	neighbour, err := t.enter(ctx, effort, effortUS, queued, 0, 0)
	if err != nil {
		return "", err
	}
	defer neighbour.kill()
	for range t.tries {
		if r.beside, err = t.requests(ctx, service); err != nil {
			return "", err
		}
		if err = r.judge(t.bounds); err == nil {
			break
		}
	}
	t.say("Requests of %d kernels of %d µs with high priority took %v.", requestKernels, kernelUS, r)
	return r.String(), r.judge(t.bounds)
}

func (t *turns) requests(ctx context.Context, p *child) (took, error) {
	if err := pause(ctx, t.settles); err != nil {
		return took{}, err
	}
	ends, _, err := t.watch(ctx, t.window, p)
	if err == nil && ends[0].Requests == 0 {
		err = fmt.Errorf("no request ended within %v", t.window)
	}
	if err != nil {
		return took{}, err
	}
	return took{ends[0].Requests, ends[0].P50US / 1000, ends[0].P99US / 1000}, nil
}

// say adds a sentence to the paragraph of the report.
func (t *turns) say(format string, args ...any) {
	t.report.turns = append(t.report.turns, fmt.Sprintf(format, args...))
}

// gateRow is what a launch costs by the driver and by the library in front of it.
type gateRow struct {
	driverNS, ours float64
	same           bool // the library leaves launches to the driver
}

func (g gateRow) String() string {
	if g.same {
		return "nothing"
	}
	return fmt.Sprintf("%.1f ns", g.ours-g.driverNS)
}

// shareOfTime is how many of all kernels the first of two claims has completed, and how many fewer both have than one alone, in
// percent.
type shareOfTime struct {
	want, had, lost float64
	window          time.Duration
}

func (s shareOfTime) String() string {
	return fmt.Sprintf("%.1f %% of the kernels at a share of %.0f %%, within %v; both together completed %.1f %% fewer than one alone",
		s.had, s.want, s.window, s.lost)
}

func (s shareOfTime) judge(points float64) error {
	if off := math.Abs(s.had - s.want); !(off <= points) { // not a number is not, either
		return fmt.Errorf("%s: more than %.0f points off", s, points)
	}
	return nil
}

// took is how long requests took, in milliseconds.
type took struct {
	count       int
	median, p99 float64
}

func (t took) String() string {
	return fmt.Sprintf("%.1f ms (99th percentile: %.1f ms)", t.median, t.p99)
}

type requests struct{ alone, beside took }

func (r requests) String() string {
	return fmt.Sprintf("%v alone, and %v beside a best-effort claim that always wants the GPU: %.2f times as long at the 99th percentile",
		r.alone, r.beside, r.beside.p99/r.alone.p99)
}

func (r requests) judge(b bounds) error {
	if r.beside.median <= b.median*r.alone.median && r.beside.p99 <= b.p99*r.alone.p99 {
		return nil
	}
	return fmt.Errorf("%v, more than %.1f times, or than %.1f times in the median", r, b.p99, b.median)
}
