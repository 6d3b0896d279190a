package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// callRounds and trainRounds are how often bare and shadowed take turns.
	callRounds  = 5
	trainRounds = 3
)

// callBenchmarks are those of callbench that a real GPU does in reasonable time.
var callBenchmarks = []string{
	"launch", "allocate_free_live_1", "allocate_free_small", "allocate_free_live_1000", "allocate_free_async",
	"create_release", "mem_get_info",
}

// overheadRow is one figure, bare and shadowed.
type overheadRow struct {
	what, unit     string
	bare, shadowed []float64
}

// measureOverhead measures bare and shadowed in turns, so that a machine that slows down slows down both.
func (c *checker) measureOverhead(ctx context.Context) {
	l, err := c.newClaim(c.machine.limitBytes)
	if err != nil {
		c.broken("overhead", err)
		return
	}
	c.measureCalls(ctx, l)
	c.measureTraining(ctx, l)
}

func (c *checker) measureCalls(ctx context.Context, l *claim) {
	name := "calls of the driver, bare and shadowed"
	rows := map[string]*overheadRow{}
	var order []string
	for range callRounds {
		for _, env := range [][]string{c.bareEnv(), l.env} {
			out, err := c.output(ctx, 30*time.Second, env, c.program("callbench"), append([]string{"-"}, callBenchmarks...)...)
			if err != nil {
				c.broken(name, err)
				return
			}
			for line := range strings.Lines(out) {
				key, value, err := parseCall(line)
				if err != nil {
					c.broken(name, err)
					return
				}
				if rows[key] == nil {
					rows[key] = &overheadRow{what: key, unit: "ns"}
					order = append(order, key)
				}
				rows[key].add(&env[0] == &l.env[0], value)
			}
		}
	}
	for _, key := range order {
		c.report.overhead = append(c.report.overhead, *rows[key])
	}
	c.note(name, passed, fmt.Sprintf("%d rounds; the figures are below", callRounds))
}

func (r *overheadRow) add(shadowed bool, value float64) {
	if shadowed {
		r.shadowed = append(r.shadowed, value)
	} else {
		r.bare = append(r.bare, value)
	}
}

// parseCall reads a line of callbench: benchmark, variant, threads, median, 99th percentile, unit.
func parseCall(line string) (what string, median float64, err error) {
	fields := strings.Split(strings.TrimSpace(line), "\t")
	if len(fields) != 6 {
		return "", 0, fmt.Errorf("callbench says %q, which has not six fields", line)
	}
	median, err = strconv.ParseFloat(fields[3], 64)
	return fmt.Sprintf("%s, %s thread(s)", fields[0], fields[2]), median, err
}

func (c *checker) measureTraining(ctx context.Context, l *claim) {
	name := "a training step of a small PyTorch model, bare and shadowed"
	if c.python == "" {
		c.broken(name, &impossibleError{"PyTorch: " + c.machine.torch})
		return
	}
	row := overheadRow{what: "training step", unit: "µs"}
	for range trainRounds {
		for _, env := range [][]string{c.bareEnv(), l.env} {
			value, err := c.trainOnce(ctx, env)
			if err != nil {
				c.broken(name, err)
				return
			}
			row.add(&env[0] == &l.env[0], value)
		}
	}
	c.report.overhead = append(c.report.overhead, row)
	c.note(name, passed, fmt.Sprintf("bare %.0f µs, shadowed %.0f µs", median(row.bare), median(row.shadowed)))
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
