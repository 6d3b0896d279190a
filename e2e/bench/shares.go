package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tranche-gpu/tranche/e2e/shares"
)

// sharesWarmUp is what comes before the first reading of the record.
const sharesWarmUp = 2 * time.Second

// sharer measures compute shares on one node.
type sharer struct {
	*shares.Node
	window  time.Duration
	results []result
}

// shares measures what claims that compute in turns get of a GPU's time, and what turns cost. The simulator's record judges.
func (b *bench) shares(ctx context.Context, window time.Duration) (results []result, err error) {
	n, err := shares.Start(ctx, b.build, filepath.Join(b.dir, "shares"), filepath.Join(b.build, "../e2e/simgpu/topologies/h200x2.conf"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	s := &sharer{Node: n, window: window}
	for _, measure := range []func(context.Context) error{
		s.errors, s.losses, s.idle, s.ceiling, s.highPriority, s.launches, s.neighbours, s.bypasses, s.governorKilled,
	} {
		if err := measure(ctx); err != nil {
			return nil, err
		}
	}
	return s.results, nil
}

func (s *sharer) add(benchmark, variant string, value float64, unit string) {
	fmt.Printf("==> shares: %s, %s: %.2f %s\n", benchmark, variant, value, unit)
	s.results = append(s.results, result{benchmark, variant, 1, value, value, unit})
}

// workload is one load of a mix.
type workload struct {
	claim shares.Claim
	share float64
	args  []string
	// longest is how long its longest kernel or graph takes, if that is longer than a round of turns.
	longest time.Duration
}

// kernels is the arguments of a load that always has much work queued, with kernels of this length.
func kernels(us int, more ...string) []string {
	return append([]string{"--kernel", fmt.Sprint(us)}, more...)
}

// sharing is a load with a share in percent.
func sharing(percent float64, args []string) workload {
	return workload{claim: shares.Share(percent), share: percent, args: args}
}

// veryLong is a load with a share in percent whose kernels take longer than a round of turns.
func veryLong(percent float64, kernel time.Duration) workload {
	w := sharing(percent, kernels(int(kernel.Microseconds()), "--depth", "2"))
	w.longest = kernel
	return w
}

// together runs loads at once, and returns what happened in a window after all have been warm for a while, and their reports.
func (s *sharer) together(ctx context.Context, loads []workload, during func() error) (w shares.Window, reports []shares.Report, err error) {
	var running []*shares.Load
	defer func() {
		for _, l := range running {
			err = errors.Join(err, l.Kill())
		}
	}()
	for i, load := range loads {
		l, err := s.Start(ctx, name(i), load.claim, load.args...)
		if err != nil {
			return w, nil, err
		}
		running = append(running, l)
	}
	if _, err := s.Watch(ctx, sharesWarmUp); err != nil {
		return w, nil, err
	}
	for _, l := range running {
		if err := l.Forget(); err != nil {
			return w, nil, err
		}
	}
	if during == nil {
		w, err = s.Watch(ctx, max(s.window, bounded(loads)))
	} else {
		w, err = s.Over(ctx, during)
	}
	if err != nil {
		return w, nil, err
	}
	fmt.Println("   ", w)
	for len(running) > 0 {
		r, err := running[0].Stop()
		running = running[1:]
		if err != nil {
			return w, nil, err
		}
		reports = append(reports, r)
	}
	return w, reports, nil
}

// bounded is the shortest window in which no share is promised to be more than two points off; docs/compute.md has the bound.
func bounded(loads []workload) (window time.Duration) {
	const round = 20 * time.Millisecond
	for _, l := range loads {
		window = max(window, 50*(round+l.longest))
	}
	return window
}

func name(i int) string { return string(rune('a' + i)) }

// shareError is the largest distance of a load's part from its share, in points.
func shareError(w shares.Window, loads []workload) float64 {
	want := map[string]float64{}
	for i, load := range loads {
		want[name(i)] = load.share
	}
	return w.Error(want)
}

// errors measures how exact shares are, by the mix of loads.
func (s *sharer) errors(ctx context.Context) error {
	var eight []workload
	for _, share := range []float64{4, 6, 8, 10, 12, 15, 20, 25} {
		eight = append(eight, sharing(share, kernels(1000, "--depth", "16")))
	}
	for _, mix := range []struct {
		name  string
		loads []workload
	}{
		{"50:50", []workload{sharing(50, kernels(1000)), sharing(50, kernels(1000))}},
		{"30:70", []workload{sharing(30, kernels(1000)), sharing(70, kernels(1000))}},
		{"10:90", []workload{sharing(10, kernels(1000)), sharing(90, kernels(1000))}},
		{"eight-unequal", eight},
		{"30:70-synchronous", []workload{sharing(30, kernels(1000, "--depth", "1")), sharing(70, kernels(500, "--depth", "1"))}},
		{"30:70-synchronous-beside-queued", []workload{sharing(30, kernels(200, "--depth", "1")), sharing(70, kernels(5000))}},
		{"30:70-10us-beside-5ms", []workload{sharing(30, kernels(10, "--depth", "256")), sharing(70, kernels(5000))}},
		{"70:30-graphs", []workload{sharing(70, kernels(100, "--graph", "20")), sharing(30, kernels(1000))}},
		{"30:70-100ms-beside-1ms", []workload{veryLong(30, 100*time.Millisecond), sharing(70, kernels(1000))}},
		{"80:20-10us-beside-300ms", []workload{sharing(80, kernels(10, "--depth", "256")), veryLong(20, 300*time.Millisecond)}},
		{"50:50-four-processes-beside-one", []workload{
			sharing(50, kernels(1000, "--processes", "4", "--depth", "16")), sharing(50, kernels(1000)),
		}},
	} {
		w, _, err := s.together(ctx, mix.loads, nil)
		if err != nil {
			return fmt.Errorf("the mix %s: %w", mix.name, err)
		}
		s.add("share_error", mix.name, shareError(w, mix.loads), "points")
	}
	return nil
}

// losses measures how much of the GPU's time nobody has while several claims want all of it.
func (s *sharer) losses(ctx context.Context) error {
	var alone float64
	for _, count := range []int{1, 2, 4, 8} {
		var loads []workload
		for range count {
			loads = append(loads, sharing(100/float64(count), kernels(1000, "--depth", "16")))
		}
		w, _, err := s.together(ctx, loads, nil)
		if err != nil {
			return err
		}
		if count == 1 {
			alone = w.Used()
			continue
		}
		s.add("share_loss", fmt.Sprintf("%d-claims", count), 100*(1-w.Used()/alone), "percent")
	}
	return nil
}

// idle measures how much of the time that a claim leaves idle another one has.
func (s *sharer) idle(ctx context.Context) error {
	w, _, err := s.together(ctx, []workload{
		sharing(50, kernels(1000)),
		sharing(50, kernels(1000, "--burst", "200", "--pause", "500000")),
	}, nil)
	if err != nil {
		return err
	}
	left := w.Length - w.Busy[name(1)]
	s.add("idle", "regained", 100*float64(w.Busy[name(0)])/float64(left), "percent")
	return nil
}

// ceiling measures how exact a ceiling is for a claim that is alone on the GPU.
func (s *sharer) ceiling(ctx context.Context) error {
	const most = 40
	w, _, err := s.together(ctx, []workload{{claim: shares.Share(30).Max(most), args: kernels(1000)}}, nil)
	if err != nil {
		return err
	}
	s.add("ceiling", fmt.Sprintf("%d", most), math.Abs(w.Used()-most), "points")
	return nil
}

// highPriority measures how much longer requests of a claim with high priority take beside a best-effort one.
func (s *sharer) highPriority(ctx context.Context) error {
	high := workload{claim: shares.Share(50).Priority("high"), args: kernels(1000, "--burst", "10", "--pause", "10000")}
	effort := workload{claim: shares.Share(50).Priority("best-effort"), args: kernels(200)}
	_, alone, err := s.together(ctx, []workload{high}, nil)
	if err != nil {
		return err
	}
	_, beside, err := s.together(ctx, []workload{high, effort}, nil)
	if err != nil {
		return err
	}
	s.add("high_priority_p99", "beside-best-effort", beside[0].RequestUS.P99/alone[0].RequestUS.P99, "ratio")
	return nil
}

// launches measures how long a launch takes, without Tranche, under a claim that is not governed, and under one that is.
func (s *sharer) launches(ctx context.Context) error {
	// A queue that never fills up: a launch would wait for room in it.
	args := []string{"--kernel", "20", "--depth", "512", "--burst", "256", "--pause", "1000"}
	idle := workload{claim: shares.Share(50), args: []string{"--kernel", "1", "--depth", "1", "--pause", "10000"}}
	for _, variant := range []struct {
		name  string
		loads []workload
	}{
		{"bare", []workload{{args: args}}},
		{"tranche", []workload{{claim: shares.Claim{}, args: args}}},
		{"governed-alone", []workload{{claim: shares.Share(50), args: args}}},
		{"governed-metered", []workload{{claim: shares.Share(50), args: args}, idle}},
	} {
		_, reports, err := s.together(ctx, variant.loads, nil)
		if err != nil {
			return fmt.Errorf("the variant %s: %w", variant.name, err)
		}
		r := result{"gpu_launch", variant.name, 1, reports[0].LaunchNS.P50, reports[0].LaunchNS.P99, "ns"}
		fmt.Printf("==> shares: %s, %s: %.0f ns\n", r.benchmark, r.variant, r.median)
		s.results = append(s.results, r)
	}
	return nil
}

// neighbours measures how long a launch waits whose neighbour is killed or stopped. That includes the neighbour's turn.
func (s *sharer) neighbours(ctx context.Context) error {
	for _, ends := range []struct {
		benchmark string
		signal    syscall.Signal
	}{{"holder_killed", syscall.SIGKILL}, {"holder_stopped", syscall.SIGSTOP}} {
		longest := 0.0
		for range 5 { // it may not be in its turn
			wait, err := s.neighbour(ctx, ends.signal)
			if err != nil {
				return err
			}
			longest = max(longest, wait)
		}
		s.add(ends.benchmark, "longest-launch", longest, "ms")
	}
	return nil
}

func (s *sharer) neighbour(ctx context.Context, signal syscall.Signal) (longest float64, err error) {
	other, err := s.Start(ctx, name(0), shares.Share(50), kernels(1000)...)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, other.Kill()) }()
	waits, err := s.Start(ctx, name(1), shares.Share(50), kernels(1000, "--depth", "8")...)
	if err != nil {
		return 0, err
	}
	_, err = s.Watch(ctx, time.Second)
	if err == nil {
		err = waits.Forget()
	}
	if err == nil {
		err = other.Signal(signal)
	}
	if err == nil {
		_, err = s.Watch(ctx, time.Second)
	}
	if err != nil {
		return 0, errors.Join(err, waits.Kill())
	}
	report, err := waits.Stop()
	return report.LaunchNS.Longest / 1e6, err
}

// bypasses measures how long after its first kernel a program of a governed claim that bypasses the governed library is named by
// `tranche status --json`: where nobody has joined, and beside a program that has.
func (s *sharer) bypasses(ctx context.Context) error {
	ungoverned, err := s.BypassingUngoverned(shares.Share(50))
	if err != nil {
		return err
	}
	for _, variant := range []struct {
		name          string
		claim, beside shares.Claim
	}{
		{name: "drivers-library", claim: s.Bypassing(shares.Share(50))},
		{name: "ungoverned-library", claim: ungoverned, beside: shares.Share(50)},
	} {
		longest := 0.0
		for range 5 { // the governor looks at the GPU from time to time
			took, err := s.bypass(ctx, variant.claim, variant.beside)
			if err != nil {
				return fmt.Errorf("the variant %s: %w", variant.name, err)
			}
			longest = max(longest, took.Seconds())
		}
		s.add("bypass_named", variant.name, longest, "s")
	}
	return nil
}

func (s *sharer) bypass(ctx context.Context, claim, beside shares.Claim) (took time.Duration, err error) {
	if beside != nil {
		other, err := s.Start(ctx, name(1), beside, kernels(1000)...)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, other.Kill()) }()
	}
	l, err := s.Start(ctx, name(0), claim, kernels(1000)...)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Kill()) }()
	began := time.Now() // its first kernel has just ended
	err = s.AwaitNamed(ctx, l)
	return time.Since(began), err
}

// governorKilled measures how long a launch waits whose governor is killed, and how exact shares are under the next.
func (s *sharer) governorKilled(ctx context.Context) error {
	loads := []workload{sharing(30, kernels(1000, "--depth", "8")), sharing(70, kernels(1000, "--depth", "8"))}
	_, reports, err := s.together(ctx, loads, func() error {
		if err := s.KillGovernor(); err != nil {
			return err
		}
		_, err := s.Watch(ctx, time.Second)
		return err
	})
	if err != nil {
		return err
	}
	longest := 0.0
	for _, r := range reports {
		longest = max(longest, r.LaunchNS.Longest/1e6)
	}
	s.add("governor_killed", "longest-launch", longest, "ms")
	if err := s.StartGovernor(ctx); err != nil {
		return err
	}
	w, _, err := s.together(ctx, loads, nil)
	if err != nil {
		return err
	}
	s.add("share_error", "30:70-under-the-next-governor", shareError(w, loads), "points")
	return nil
}
