package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// settle is how long the machine is left alone before tasks are started, and again before they end; longer for many. No
// event tells when a driver is done with what it does in the background, and when it waits for a task's end: with most
// tasks that has been so for long when they end.
func settle(ctx context.Context, tasks int) error {
	select {
	case <-time.After(time.Duration(1+tasks/10) * 100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// taskCounts says what is measured of tasks.
type taskCounts struct {
	// one is how many tasks each driver starts one after another; atOnce how many in each of the bursts.
	one, atOnce, bursts int
	// runtimes are the OCI runtimes that our driver is measured with. docker's has runc.
	runtimes []string
}

// taskTimes are what is measured of tasks, in milliseconds.
type taskTimes struct {
	// start is from the call of StartTask to the program's first instruction, exit from its last one to the answer to
	// WaitTask, by which an agent knows of the end.
	start, exit []float64
}

func (t *taskTimes) add(more taskTimes) {
	t.start, t.exit = append(t.start, more.start...), append(t.exit, more.exit...)
}

// tasks measures starts and ends of tasks: one after another, and many at once. The drivers take turns, so that a
// machine that slows down slows down both.
func (b *bench) tasks(ctx context.Context, counts taskCounts) (_ []result, err error) {
	n, err := b.startTaskNode(ctx, counts.runtimes)
	if err != nil {
		return nil, err
	}
	defer func() {
		if stopErr := n.stop(); err == nil {
			err = stopErr
		}
	}()
	// What comes first pays for connections and for what is not in memory yet.
	if _, err := n.inTurns(ctx, 1, 1); err != nil {
		return nil, err
	}
	fmt.Printf("==> tasks one after another, %d of each driver\n", counts.one)
	single, err := n.inTurns(ctx, counts.one, 1)
	if err != nil {
		return nil, err
	}
	fmt.Printf("==> %d tasks at once, %d times with each driver\n", counts.atOnce, counts.bursts)
	burst, err := n.inTurns(ctx, counts.bursts, counts.atOnce)
	if err != nil {
		return nil, err
	}
	return append(n.results("", 1, single), n.results("-"+strconv.Itoa(counts.atOnce), counts.atOnce, burst)...), nil
}

// inTurns lets each driver in turn start and end so many tasks at once, several rounds, and returns each driver's times.
func (n *taskNode) inTurns(ctx context.Context, rounds, atOnce int) (map[*taskDriver]*taskTimes, error) {
	times := map[*taskDriver]*taskTimes{}
	turn := slices.Clone(n.drivers)
	for range rounds {
		for _, d := range turn {
			round, err := n.round(ctx, d, atOnce)
			if err != nil {
				return nil, fmt.Errorf("a task of the variant %s: %w", d.variant, err)
			}
			if times[d] == nil {
				times[d] = &taskTimes{}
			}
			times[d].add(round)
		}
		// Whoever was last is the first of the next round: nobody always comes after the same.
		slices.Reverse(turn)
	}
	return times, nil
}

// round starts tasks, all at once, waits until they run, ends them, and removes them.
func (n *taskNode) round(ctx context.Context, d *taskDriver, count int) (times taskTimes, err error) {
	tasks := make([]*benchTask, count)
	defer func() {
		for _, t := range tasks {
			if removeErr := t.remove(); err == nil {
				err = removeErr
			}
		}
	}()
	for i := range tasks {
		if tasks[i], err = n.newTask(d); err != nil {
			return times, err
		}
	}
	if err := settle(ctx, count); err != nil {
		return times, err
	}
	if times.start, err = atOnce(tasks, (*benchTask).start); err != nil {
		return times, err
	}
	for _, t := range tasks {
		if err := t.wait(ctx); err != nil {
			return times, err
		}
	}
	if err := settle(ctx, count); err != nil {
		return times, err
	}
	times.exit, err = atOnce(tasks, (*benchTask).end)
	return times, err
}

// atOnce does the same with all tasks at the same time, and returns what it took.
func atOnce(tasks []*benchTask, do func(*benchTask) (float64, error)) ([]float64, error) {
	took := make([]float64, len(tasks))
	var group errgroup.Group
	for i, t := range tasks {
		group.Go(func() (err error) {
			took[i], err = do(t)
			return err
		})
	}
	return took, group.Wait()
}

// results are the lines of bench.tsv.
func (n *taskNode) results(suffix string, threads int, times map[*taskDriver]*taskTimes) []result {
	var all []result
	for _, benchmark := range []struct {
		name string
		of   func(*taskTimes) []float64
	}{
		{"task-start", func(t *taskTimes) []float64 { return t.start }},
		{"task-exit", func(t *taskTimes) []float64 { return t.exit }},
	} {
		for _, d := range n.drivers {
			r := result{benchmark: benchmark.name + suffix, variant: d.variant, threads: threads, unit: "ms"}
			r.median, r.p99 = medianOf(benchmark.of(times[d]))
			all = append(all, r)
		}
	}
	return all
}
